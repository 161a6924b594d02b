//! redis-server as a program to audit: started on a free port of the loopback, loaded, stopped.

use super::Guard;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::Path;

pub const REDIS: &str = "/usr/bin/redis-server";

/// A port without a listener: bound once, then free again.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("an address").port()
}

pub fn redis_command(port: u16, folder: &Path) -> Vec<OsString> {
    let folder = folder.as_os_str();
    let port = OsString::from(port.to_string());
    let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"];
    let mut command: Vec<OsString> = vec![REDIS.into(), "--port".into(), port, "--dir".into(), folder.into()];
    command.extend(options.map(OsString::from));
    command
}

/// Reads the server's log until it says that it is ready.
pub fn until_ready(server: &mut Guard) {
    let mut pipe = server.0.stdout.take().expect("a pipe");
    let mut log = Vec::new();
    let mut piece = [0; 512];
    while !String::from_utf8_lossy(&log).contains("Ready to accept connections") {
        let n = pipe.read(&mut piece).expect("the server's log");
        assert!(n > 0, "redis-server ended early: {}", String::from_utf8_lossy(&log));
        log.extend_from_slice(&piece[..n]);
    }
    server.0.stdout = Some(pipe);
}

/// Talks to the server as a client would: fills it, empties it, stops it.
pub fn load_and_stop(port: u16) {
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connects");
    let mut answers = client.try_clone().expect("a second handle");
    let reader = std::thread::spawn(move || {
        // 4000 times SET, once FLUSHALL; SHUTDOWN has no answer.
        let mut all = vec![0; 4001 * b"+OK\r\n".len()];
        answers.read_exact(&mut all).expect("answers");
        all
    });
    let value = "x".repeat(1000);
    for i in 0..4000 {
        write!(client, "SET key:{i} {value}\r\n").expect("sent");
    }
    write!(client, "FLUSHALL\r\n").expect("sent");
    let answers = reader.join().expect("reader");
    assert!(answers.chunks(5).all(|answer| answer == b"+OK\r\n"));
    write!(client, "SHUTDOWN NOSAVE\r\n").expect("sent");
}
