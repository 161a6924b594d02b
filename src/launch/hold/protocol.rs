//! What keeper and vmaudit say to each other, a packet a message. Pure encoding; both ends are
//! the same program, so native byte order will do.

use crate::model::{Pid, Tid};

/// Bytes of every packet, in both directions.
pub const PACKET: usize = 32;

const KIND_HELD: u32 = 1;
const KIND_ANSWERED: u32 = 2;
const KIND_STAND_BY: u32 = 3;
const KIND_SERVE: u32 = 4;
const KIND_READY: u32 = 5;
const KIND_STRICT: u32 = 6;
const KIND_SPARE: u32 = 7;

/// A final exit, received from the kernel and not yet answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldNotice {
    /// The notification's id (`seccomp_notif.id`).
    pub id: u64,
    /// Process and thread in the keeper's PID namespace, which is vmaudit's.
    pub pid: i32,
    pub tid: Tid,
    /// NR_EXIT or NR_EXIT_GROUP.
    pub nr: i32,
    /// The call's first argument: the low 8 bits become the exit status.
    pub status: i32,
}

/// Processes that need not be held: small and short ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spared {
    /// Whose address space is smaller than this, bytes.
    pub below: u64,
    /// But for the children of this process.
    pub parent: Pid,
}

/// A thread's name, ended by NUL.
pub type Comm = [u8; 16];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Keeper to vmaudit: a process is held at its end.
    Held(HeldNotice),
    /// vmaudit to keeper: this one has its answer; forget it.
    Answered { id: u64 },
    /// vmaudit to keeper: vmaudit receives the notifications itself, as long as it lives.
    StandBy,
    /// vmaudit to keeper: it no longer does.
    Serve,
    /// Keeper to vmaudit: the guard is forked.
    Ready,
    /// Receiver to vmaudit: a process requests seccomp's strict mode, which the kernel will refuse.
    Strict { pid: i32, comm: Comm },
    /// vmaudit to keeper, before the first notification: which processes to continue without a report.
    Spare(Spared),
}

impl Message {
    pub fn encode(&self) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
        match self {
            Message::Held(notice) => {
                put(0, &KIND_HELD.to_ne_bytes());
                put(4, &notice.nr.to_ne_bytes());
                put(8, &notice.id.to_ne_bytes());
                put(16, &notice.pid.to_ne_bytes());
                put(20, &notice.tid.to_ne_bytes());
                put(24, &notice.status.to_ne_bytes());
            }
            Message::Answered { id } => {
                put(0, &KIND_ANSWERED.to_ne_bytes());
                put(8, &id.to_ne_bytes());
            }
            Message::StandBy => put(0, &KIND_STAND_BY.to_ne_bytes()),
            Message::Serve => put(0, &KIND_SERVE.to_ne_bytes()),
            Message::Ready => put(0, &KIND_READY.to_ne_bytes()),
            Message::Strict { pid, comm } => {
                put(0, &KIND_STRICT.to_ne_bytes());
                put(4, &pid.to_ne_bytes());
                put(8, comm);
            }
            Message::Spare(spared) => {
                put(0, &KIND_SPARE.to_ne_bytes());
                put(4, &spared.parent.to_ne_bytes());
                put(8, &spared.below.to_ne_bytes());
            }
        }
        packet
    }

    /// None for anything that `encode` does not make.
    pub fn decode(packet: &[u8]) -> Option<Message> {
        if packet.len() != PACKET {
            return None;
        }
        let int = |at: usize| Some(i32::from_ne_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        let id = u64::from_ne_bytes(packet.get(8..16)?.try_into().ok()?);
        match int(0)? as u32 {
            KIND_HELD => Some(Message::Held(HeldNotice {
                id,
                nr: int(4)?,
                pid: int(16)?,
                tid: int(20)?,
                status: int(24)?,
            })),
            KIND_ANSWERED => Some(Message::Answered { id }),
            KIND_STAND_BY => Some(Message::StandBy),
            KIND_SERVE => Some(Message::Serve),
            KIND_READY => Some(Message::Ready),
            KIND_STRICT => Some(Message::Strict { pid: int(4)?, comm: packet.get(8..24)?.try_into().ok()? }),
            KIND_SPARE => Some(Message::Spare(Spared { parent: int(4)?, below: id })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let notice = HeldNotice { id: u64::MAX - 3, pid: 7, tid: 32_000, nr: 231, status: -1 };
        let answered = Message::Answered { id: 0x0102_0304_0506_0708 };
        let plain = [Message::StandBy, Message::Serve, Message::Ready];
        let strict = Message::Strict { pid: 7, comm: *b"a name of 15 by\0" };
        let spare = Message::Spare(Spared { parent: 7, below: 1 << 40 });
        for message in plain.into_iter().chain([Message::Held(notice), answered, strict, spare]) {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn other_packets_are_refused() {
        let packet = Message::Answered { id: 1 }.encode();
        assert_eq!(Message::decode(&packet[..PACKET - 1]), None);
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0; PACKET]), None);
        assert_eq!(Message::decode(&[0; PACKET + 1]), None);
    }
}
