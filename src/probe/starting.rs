//! What a process that is to become the command may do to itself.

use super::child::in_child;
use super::{Failure, Subject};
use crate::model::{Trial, TrialArea};
use nix::sys::personality::{self, Persona};

pub fn trials() -> Vec<Trial> {
    vec![
        Subject {
            area: TrialArea::Starting,
            id: "personality",
            what: "switching ASLR off (personality)",
            without: "no --aslr off",
        }
        .came_out(aslr_off()),
    ]
}

fn aslr_off() -> Result<String, Failure> {
    in_child(|| {
        let persona = personality::get()?;
        personality::set(persona | Persona::ADDR_NO_RANDOMIZE)?;
        Ok(String::new())
    })
}
