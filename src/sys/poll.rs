//! ppoll(2).

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Until one of these has an event that is polled for, the time is over (None: never), or a signal has come: then, as
/// when the time is over, false.
///
/// # Errors
/// When the kernel refuses it.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    match ppoll(fds, timeout.map(TimeSpec::from_duration), None) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Until one of these can be read, the time is over (None: never), or a signal has come.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    // An error leaves nothing to wait for: the reader gets it.
    let _ = poll(&mut fds, timeout);
}

/// Until it can be read or the time is over (None: never), signals or not; true when it can be read.
pub fn wait_readable(fd: impl AsFd, timeout: Option<Duration>) -> bool {
    let begun = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut fds, left.map(TimeSpec::from_duration), None) {
            Err(Errno::EINTR) => {}
            other => return other.is_ok_and(|count| count > 0),
        }
    }
}

/// What there is to be had of it now (POLLIN, and POLLHUP, POLLERR and POLLNVAL, which are always reported), without waiting.
pub fn events(fd: impl AsFd) -> PollFlags {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, Some(Duration::ZERO));
    fds[0].revents().unwrap_or(PollFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{pipe, write};

    #[test]
    fn what_waits_is_seen_and_nothing_is_waited_for_in_vain() {
        let (reader, writer) = pipe().expect("a pipe");
        assert_eq!(events(&reader), PollFlags::empty());
        assert!(!wait_readable(&reader, Some(Duration::from_millis(1))));
        write(&writer, b"x").expect("space");
        assert_eq!(events(&reader), PollFlags::POLLIN);
        assert!(wait_readable(&reader, None));
        wait(&[reader.as_fd()], None);
        drop(writer);
        assert!(events(&reader).contains(PollFlags::POLLHUP));
    }
}
