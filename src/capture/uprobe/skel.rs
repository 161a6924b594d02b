//! What libbpf-cargo generates from bpf/probe.bpf.c.

#![allow(clippy::all, clippy::pedantic, missing_docs, dead_code)]

include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
