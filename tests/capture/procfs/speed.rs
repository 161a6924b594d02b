//! How long it takes to read a process with 65,000 mappings. Prints figures, asserts nothing
//! about time: `cargo test --release --test capture procfs::speed -- --ignored --nocapture`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vmaudit::model::observation::ResidencySource;
use vmaudit::procfs::{ObserveOptions, observe, parse_maps, parse_smaps};

/// As `cat` reads: 128 KiB at a time.
fn cat(path: &str) -> Vec<u8> {
    let mut file = File::open(path).expect("a living process");
    let (mut all, mut buffer) = (Vec::new(), vec![0; 128 << 10]);
    loop {
        match file.read(&mut buffer).expect("readable") {
            0 => return all,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Prints times and asserts none: they depend on the machine and on what else runs.
#[test]
#[ignore = "prints times; run by hand with --release"]
fn sixty_five_thousand_mappings() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("procfs_many");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/procfs_many.c");
    let compiled = Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source).status();
    assert!(compiled.expect("a C compiler").success());
    let mut child = Command::new(&program)
        .arg("65000")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let ready = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
    let pid = child.id() as i32;

    let options = |rung| ObserveOptions { residency_from: rung, ..ObserveOptions::default() };
    let smaps = median(|| drop(cat(&format!("/proc/{pid}/smaps"))));
    let maps = median(|| drop(cat(&format!("/proc/{pid}/maps"))));
    let maps_text = cat(&format!("/proc/{pid}/maps"));
    let smaps_text = cat(&format!("/proc/{pid}/smaps"));
    let parse = median(|| drop(parse_maps(&maps_text)));
    let parse_all = median(|| drop(parse_smaps(&smaps_text)));
    println!("{} mappings, {} bytes of maps", parse_maps(&maps_text).mappings.len(), maps_text.len());
    println!("cat smaps {smaps:?}, cat maps {maps:?}, parse maps {parse:?}, parse smaps {parse_all:?}");
    for rung in [ResidencySource::PagemapScan, ResidencySource::Pagemap, ResidencySource::SmapsProportion] {
        let mut held = Duration::ZERO;
        let whole = median(|| {
            let seen = observe(pid, pid, options(rung)).expect("a living process");
            assert_eq!(seen.residency.source, rung);
            held = Duration::from_nanos(seen.ended_ns - seen.begun_ns);
        });
        let ratio = whole.as_secs_f64() / smaps.as_secs_f64();
        println!("observe from {rung:?}: {whole:?} = {ratio:.2} x cat smaps, reading {held:?}");
    }
    let _ = (ready, child.kill(), child.wait());
}
