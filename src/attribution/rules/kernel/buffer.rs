//! Memory that program and kernel write to together: io_uring rings, perf's buffers, BPF maps, packet
//! rings. The kernel names them `anon_inode:…` or `socket:[…]` (fs/anon_inodes.c, net/socket.c).

use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance};
use crate::attribution::findings::Fix;
use crate::attribution::rules::{Advice, Claim, Group, Rule, Subject, World};
use crate::ledger::RegionKind;
use crate::model::Mapping;

pub const IO_URING: Category = Category(&CategoryInfo {
    id: "io-uring",
    color: 0x1c8c8c,
    name: "io_uring rings",
    one: "part of an io_uring",
    many: "parts of io_uring rings",
});
pub const KERNEL_BUFFER: Category = Category(&CategoryInfo {
    id: "kernel-buffer",
    color: 0xb147b0,
    name: "buffers shared with the kernel",
    one: "buffer shared with the kernel",
    many: "buffers shared with the kernel",
});

// include/uapi/linux/io_uring.h: which part of the ring an offset maps.
const OFF_CQ_RING: u64 = 0x800_0000;
const OFF_SQES: u64 = 0x1000_0000;
const OFF_PBUF_RING: u64 = 0x8000_0000;
const OFF_MASK: u64 = 0xf800_0000;

pub struct KernelBufferRule;

impl Rule for KernelBufferRule {
    fn id(&self) -> &'static str {
        "kernel-buffer"
    }

    fn categories(&self) -> &'static [Category] {
        &[IO_URING, KERNEL_BUFFER]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        if subject.region.kind != RegionKind::File {
            return None;
        }
        let name = subject.name();
        if name == b"anon_inode:[io_uring]" {
            return Some(Claim::new(IO_URING, Evidence::Name, uring_part(subject.mapping)));
        }
        let part = match name {
            b"anon_inode:[perf_event]" => "perf events",
            b"anon_inode:bpf-map" => "BPF map",
            _ if name.starts_with(b"socket:[") => "packet ring of a socket",
            _ if name.starts_with(b"anon_inode:") => "anonymous inode",
            _ => return None,
        };
        let instance = Instance::At(subject.range.start);
        Some(Claim::new(KERNEL_BUFFER, Evidence::Name, part).instance(instance))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        if group.category == IO_URING {
            return Advice::why(
                "submissions and completions go through these rings without a system call; their size follows \
                 from the number of entries that io_uring_setup was asked for",
            )
            .fix(Fix::new("fewer entries per ring, or fewer rings", 0, 0));
        }
        let mut parts: Vec<&str> = group.by_part.keys().copied().collect();
        parts.sort_unstable();
        let mut advice = Advice::why(
            "the kernel writes there and the program reads without a system call; the program chose the size",
        );
        if !parts.contains(&"anonymous inode") {
            advice.title = Some(format!("shared with the kernel: {}", parts.join(", ")));
        }
        advice
    }
}

fn uring_part(mapping: Option<&Mapping>) -> &'static str {
    match mapping.map(|m| m.offset & OFF_MASK) {
        Some(0) => "submission and completion ring",
        Some(OFF_CQ_RING) => "completion ring",
        Some(OFF_SQES) => "submission entries",
        Some(OFF_PBUF_RING) => "provided buffers",
        _ => "ring",
    }
}
