//! Files of the target that cost more to read than they have bytes: vmaudit's report is whole all the same, says what it
//! left out, and takes no more memory than the file justifies. docs/security.md names these tests.

use crate::support::{self, audit, program, skip, skip_without_bpf, vmaudit};
use flate2::{Compress, Compression, FlushCompress};
use nix::sys::resource::{UsageWho, getrusage};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

const SHF_COMPRESSED: u64 = 0x800;
/// What vmaudit and its helper take of a program of some kilobytes, and besides.
const MOST_MEMORY: u64 = 512 << 20;

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes([bytes[at], bytes[at + 1]]).into()
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Where the header of a section is in a file (Elf64_Shdr).
fn header_of(elf: &[u8], name: &str) -> usize {
    let (table, size, count, names) =
        (word(elf, 0x28) as usize, half(elf, 0x3a), half(elf, 0x3c), half(elf, 0x3e));
    let names = word(elf, table + names * size + 0x18) as usize;
    let is_it = |header: &usize| {
        let at =
            names + u32::from_le_bytes(elf[*header..*header + 4].try_into().expect("four bytes")) as usize;
        elf[at..].starts_with(format!("{name}\0").as_bytes())
    };
    (0..count).map(|n| table + n * size).find(is_it).unwrap_or_else(|| panic!("no section {name}"))
}

/// The file with other bytes in one of its sections.
fn with_section(elf: &[u8], name: &str, flags: u64, content: &[u8]) -> Vec<u8> {
    let mut forged = elf.to_vec();
    let header = header_of(elf, name);
    put(&mut forged, header + 0x8, flags);
    put(&mut forged, header + 0x18, elf.len() as u64);
    put(&mut forged, header + 0x20, content.len() as u64);
    forged.extend_from_slice(content);
    forged
}

/// Elf64_Chdr for zlib, and a stream that expands to so many MiB of zeros.
fn expanding(claimed: u64, mib: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for number in [1, claimed, 1] {
        out.extend_from_slice(&u64::to_le_bytes(number));
    }
    let zeros = vec![0; 1 << 20];
    let mut compress = Compress::new(Compression::best(), true);
    let mut chunk = Vec::with_capacity(1 << 16);
    // After a full flush nothing refers to what was before: the next part can be repeated.
    compress.compress_vec(&zeros, &mut chunk, FlushCompress::Full).expect("compressed");
    out.append(&mut chunk);
    chunk.reserve(1 << 16);
    compress.compress_vec(&zeros, &mut chunk, FlushCompress::Full).expect("compressed");
    (1..mib).for_each(|_| out.extend_from_slice(&chunk));
    out
}

fn executable(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    path
}

/// The most that any of this test's children, and theirs, had at once.
fn peak() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage").max_rss() as u64 * 1024
}

/// Audits it: the report is whole, its functions have names, and it says of the file what is missing.
fn assert_named_without_lines(program: &Path, why: &str) {
    let audit = audit(&[], &[program]);
    assert_eq!(audit.code(), Some(0), "{}\n{}", audit.stdout, audit.stderr);
    audit.report().assert_exact();
    let text = audit.report().json.to_string();
    let name = program.file_name().expect("a name").to_string_lossy();
    assert!(text.contains("\"main\""), "functions have names: {text}");
    let expected = format!("vmaudit: {name}: names only, no source lines: ");
    let said = audit.stderr.lines().find(|line| line.starts_with(&expected));
    assert!(said.is_some_and(|said| said.contains(why)), "{}", audit.stderr);
    assert!(peak() < MOST_MEMORY, "{} MiB", peak() >> 20);
}

fn demo() -> Vec<u8> {
    fs::read(program("own_mmap")).expect("the program")
}

#[test]
fn a_forged_size_of_a_compressed_section_costs_lines_only() {
    if skip_without_bpf("a_forged_size_of_a_compressed_section_costs_lines_only") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, claimed) in [("terabytes", 1 << 42), ("all", u64::MAX)] {
        let forged = with_section(&demo(), ".debug_line", SHF_COMPRESSED, &expanding(claimed, 1));
        assert_named_without_lines(&executable(folder.path(), name, &forged), "debugging information");
    }
}

#[test]
fn eight_megabytes_that_expand_to_gigabytes_cost_lines_only() {
    if skip_without_bpf("eight_megabytes_that_expand_to_gigabytes_cost_lines_only") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for section in [".debug_line", ".debug_info", ".debug_str"] {
        let forged = with_section(&demo(), section, SHF_COMPRESSED, &expanding(8 << 30, 8 << 10));
        let name = section.trim_start_matches('.');
        // Why depends on the machine: time, or memory.
        assert_named_without_lines(&executable(folder.path(), name, &forged), "");
    }
}

#[test]
fn a_table_of_zeros_that_xz_made_small_is_not_expanded() {
    let name = "a_table_of_zeros_that_xz_made_small_is_not_expanded";
    let zeros = Command::new("sh")
        .args(["-c", "head -c 1073741824 /dev/zero | xz -1 -c"])
        .stderr(Stdio::null())
        .output()
        .expect("a shell");
    if zeros.stdout.is_empty() {
        return skip(name, "no xz (apt-get install xz-utils)");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let elf = demo();
    let forged = with_section(&elf, ".comment", 0, &zeros.stdout);
    let header = header_of(&elf, ".comment");
    let renamed = rename(forged, header, b".gnu_debugdata\0");
    let path = executable(folder.path(), "xz", &renamed);
    let output =
        Command::new(vmaudit()).args(["symbols", "-f", "json"]).arg(&path).output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\"main\"") && text.contains("expand to more than"), "{text}");
    assert!(peak() < MOST_MEMORY, "{} MiB", peak() >> 20);
}

/// The section whose header is there gets this name, in a table of names of its own.
fn rename(mut elf: Vec<u8>, header: usize, name: &[u8]) -> Vec<u8> {
    let names = word(&elf, 0x28) as usize + half(&elf, 0x3e) * half(&elf, 0x3a);
    let (at, size) = (word(&elf, names + 0x18) as usize, word(&elf, names + 0x20) as usize);
    let table = [&elf[at..at + size], name].concat();
    let end = elf.len() as u64;
    put(&mut elf, names + 0x18, end);
    put(&mut elf, names + 0x20, table.len() as u64);
    elf[header..header + 4].copy_from_slice(&(size as u32).to_le_bytes());
    elf.extend_from_slice(&table);
    elf
}

/// Sixty thousand sections, each with the same name of eight megabytes.
#[test]
fn names_of_sections_that_share_their_bytes_are_not_multiplied() {
    let mut elf = demo();
    let (at, size) = (word(&elf, 0x28) as usize, half(&elf, 0x3a));
    let (count, names) = (half(&elf, 0x3c), half(&elf, 0x3e));
    let mut headers = elf[at..at + count * size].to_vec();
    let table = headers[names * size..(names + 1) * size].to_vec();
    headers.extend((count..60_000).flat_map(|_| table.clone()));
    let long = [vec![b'x'; (8 << 20) - 1], vec![0]].concat();
    for header in headers.chunks_exact_mut(size) {
        header[..4].fill(0);
    }
    put(&mut headers, names * size + 0x18, elf.len() as u64);
    put(&mut headers, names * size + 0x20, long.len() as u64);
    elf.extend_from_slice(&long);
    let end = elf.len() as u64;
    put(&mut elf, 0x28, end);
    elf[0x3c..0x3e].copy_from_slice(&60_000u16.to_le_bytes());
    elf.extend_from_slice(&headers);
    assert_symbols_are_read(&elf);
}

/// A million symbols, each with a name of its own that is a part of one name of 60,000 bytes.
#[test]
fn names_of_symbols_that_share_their_bytes_are_not_multiplied() {
    let elf = demo();
    let header = header_of(&elf, ".symtab");
    let strings = header_of(&elf, ".strtab");
    let symbol = {
        let (at, size) = (word(&elf, header + 0x18) as usize, word(&elf, header + 0x20) as usize);
        let table = elf[at..at + size].chunks_exact(24);
        table
            .into_iter()
            .find(|entry| entry[4] & 15 == 2 && word(entry, 16) > 0)
            .expect("a function")
            .to_vec()
    };
    let table: Vec<u8> = (0..1_000_000u32)
        .flat_map(|n| {
            let mut entry = symbol.clone();
            entry[..4].copy_from_slice(&(1 + n % 1000).to_le_bytes());
            entry
        })
        .collect();
    let forged = with_section(&elf, ".symtab", 0, &table);
    let long = [vec![0], vec![b'f'; 60_000], vec![0]].concat();
    let forged = with_section(&forged, ".strtab", 0, &long);
    assert_eq!(header_of(&forged, ".strtab"), strings);
    assert_symbols_are_read(&forged);
}

/// Tables of gigabytes in a file that has some kilobytes and holes.
#[test]
fn tables_in_the_holes_of_a_sparse_file_are_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut elf = demo();
    for name in [".symtab", ".strtab", ".dynsym", ".dynstr", ".eh_frame"] {
        let header = header_of(&elf, name);
        put(&mut elf, header + 0x18, 1 << 30);
        put(&mut elf, header + 0x20, 500 << 20);
    }
    let path = executable(folder.path(), "sparse", &elf);
    let file = File::options().write(true).open(&path).expect("opened");
    // As large as the file system lets a file be, up to a terabyte.
    let sizes = [1 << 40, 1 << 35, 1 << 32];
    let Some(size) = sizes.into_iter().find(|&size| file.write_all_at(&[0], size).is_ok()) else {
        return skip("tables_in_the_holes_of_a_sparse_file_are_not_read", "no sparse files");
    };
    assert!(file.metadata().expect("its size").len() > size);
    let output = Command::new(vmaudit()).arg("symbols").arg(&path).output().expect("started");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code().is_some_and(|code| code < 2), "{said}");
    assert!(said.contains("bytes and holes"), "{said}");
    assert!(peak() < MOST_MEMORY / 2, "{} MiB", peak() >> 20);
}

fn assert_symbols_are_read(elf: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = executable(folder.path(), "shared", elf);
    let output =
        Command::new(vmaudit()).args(["symbols", "-f", "json"]).arg(&path).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code < 2), "{:?}: {said}", output.status);
    assert!(peak() < MOST_MEMORY, "{} MiB", peak() >> 20);
    if skip_without_bpf("names that share their bytes") {
        return;
    }
    let audit = audit(&[], &[&path]);
    assert_eq!(audit.code(), Some(0), "{}\n{}", audit.stdout, audit.stderr);
    audit.report().assert_exact();
    assert!(peak() < MOST_MEMORY, "{} MiB", peak() >> 20);
}

/// blazesym would open what the path leads to, as root, and a device may do something then.
#[test]
fn a_strangers_link_to_a_further_file_is_not_followed() {
    let name = "a_strangers_link_to_a_further_file_is_not_followed";
    if skip_without_bpf(name) || support::unprivileged::skip_without_root(name) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("device");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let mut link = fifo.as_os_str().as_encoded_bytes().to_vec();
    link.extend_from_slice(&[0; 24]);
    let elf = demo();
    let forged = with_section(&elf, ".comment", 0, &link);
    let forged = rename(forged, header_of(&elf, ".comment"), b".gnu_debugaltlink\0");
    let path = executable(folder.path(), "linked", &forged);
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("chown");
    assert_named_without_lines(&path, ".gnu_debugaltlink");
    // Nobody has opened it for reading: a writer that does not wait is refused.
    let refused = nix::fcntl::open(
        &fifo,
        nix::fcntl::OFlag::O_WRONLY | nix::fcntl::OFlag::O_NONBLOCK,
        nix::sys::stat::Mode::empty(),
    );
    assert_eq!(refused.err(), Some(nix::errno::Errno::ENXIO));
}
