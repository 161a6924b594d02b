// Four threads of Rust's standard library: says ready when they run, and waits for its standard input.
use std::io::Read;
use std::sync::{Arc, Barrier};

fn main() {
    const COUNT: usize = 4;
    let up = Arc::new(Barrier::new(COUNT + 1));
    let spawn = |_| {
        let up = Arc::clone(&up);
        std::thread::spawn(move || {
            up.wait();
            loop {
                std::thread::park();
            }
        })
    };
    let threads: Vec<_> = (0..COUNT).map(spawn).collect();
    up.wait();
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(threads);
}
