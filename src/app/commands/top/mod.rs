//! `vmaudit top`: a live view of the machine, of processes, or of a container.
//!
//! `list` reads the cheap figures of all processes, `inside` takes a snapshot of one, `newest` keeps the
//! calls of a trace; `screen` owns the terminal, and `front` joins them with the state ([`crate::top`]) and
//! its drawing ([`crate::render::top`]).

mod front;
mod inside;
mod list;
mod newest;
mod plain;
mod screen;
mod traced;
mod users;

use crate::app::error::AppError;
use crate::cli::TopArgs;
use crate::procfs::read_brief;
use crate::session::SessionError;
use crate::session::say::{self, say};
use crate::session::snapshots::living::Living;
use crate::session::targets::named_container;
use crate::top::{ProcessId, Settings};
use front::Front;
use list::{ProcessList, Scope};
use std::io::{self, IsTerminal};

/// Does `vmaudit top`; returns the exit code.
pub fn top(args: &TopArgs) -> Result<u8, AppError> {
    if !args.batch {
        screen::usable()?;
    }
    let container = named_container(args.of.named())?;
    let scope = match &container {
        Some(container) => Scope::Group(container.clone()),
        None if args.of.pids.is_empty() => Scope::All,
        None => Scope::These(these(&args.of.pids)?),
    };
    let title = match &scope {
        Scope::All => nix::unistd::gethostname()
            .map_or_else(|_| "this machine".to_owned(), |name| name.to_string_lossy().into_owned()),
        Scope::These(_) => String::new(),
        Scope::Group(container) => container.name.clone(),
    };
    let settings = Settings {
        title,
        interval_ms: (args.interval * 1000.0).round().clamp(1.0, 1e12) as u64,
        sort: args.sort,
        single: matches!(&scope, Scope::These(ids) if ids.len() == 1),
    };
    let color = crate::app::output::color(&io::stdout());
    let front = Front::new(ProcessList::new(scope), settings, (args.iterations, args.batch, color));
    let outcome = if args.trace { traced::run(args, container.as_ref(), front) } else { plain::run(front) };
    say::release();
    outcome
}

/// The processes that the user named, each once. Of several some may be gone.
fn these(numbers: &[i32]) -> Result<Vec<ProcessId>, AppError> {
    let mut ids: Vec<ProcessId> = Vec::new();
    let mut errors = Vec::new();
    for living in Living::open_each(numbers) {
        match living.map(|living| read_brief(living.pid).map(|brief| (living.pid, brief.start_ticks))) {
            Ok(Ok((pid, start_ticks))) => ids.push(ProcessId { pid, start_ticks }),
            // It ended meanwhile.
            Ok(Err(_)) => {}
            Err(error) => errors.push(error),
        }
    }
    match errors.pop() {
        Some(error) if ids.is_empty() => {
            errors.iter().for_each(say);
            Err(crate::session::snapshots::SnapshotError::from(error).into())
        }
        last => {
            errors.iter().chain(&last).for_each(say);
            if ids.is_empty() { Err(SessionError::NoTargetLeft.into()) } else { Ok(ids) }
        }
    }
}

/// Standard output is a terminal that can be drawn on, and keys can be read.
fn is_screen() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
