//! What libbpf-cargo generates from bpf/vmaudit.bpf.c: the object's bytes, its maps and
//! programs, and the types of the wire record.

#![allow(clippy::all, clippy::pedantic, missing_docs, dead_code)]

include!(concat!(env!("OUT_DIR"), "/vmaudit.skel.rs"));
