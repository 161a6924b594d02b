//! Whether a process has breakpoints: what it has mapped of a file as code, compared with the file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How many bytes of its code of this file are others in the process' memory.
pub fn changed_bytes(pid: u32, file: &Path) -> usize {
    let of_file = fs::read(file).expect("the file");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let name = file.canonicalize().expect("it is there");
    let mut mapped = 0;
    let mut changed = 0;
    for line in maps.lines().filter(|line| line.ends_with(name.to_str().expect("UTF-8"))) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if !words[1].contains('x') {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (start, end) = words[0].split_once('-').expect("a range");
        let (start, end, offset) = (hex(start), hex(end), hex(words[2]) as usize);
        let mut bytes = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut bytes, start).expect("mapped");
        mapped += bytes.len();
        changed += bytes.iter().zip(&of_file[offset..]).filter(|(here, there)| here != there).count();
    }
    assert_ne!(mapped, 0, "{pid} has no code of {} mapped:\n{maps}", file.display());
    changed
}
