//! The kernel's types without those that no BPF object names, as libbpf reads them.

use crate::support::skip;
use libbpf_rs::btf::types::{Array, Composite, Enum, Enum64};
use libbpf_rs::btf::{Btf, BtfKind, BtfType};
use std::fmt::Write as _;
use vmaudit::capture::kernel_types::with_names;

const KERNEL: &str = "/sys/kernel/btf/vmlinux";

/// Some that the BPF objects read, with all kinds of members among them.
const TYPES: [&str; 12] = [
    "cgroup_subsys_id",
    "cred",
    "dentry",
    "file",
    "inode",
    "mm_struct",
    "path",
    "pid",
    "pt_regs",
    "signal_struct",
    "task_struct",
    "vm_area_struct",
];

/// What libbpf can see of a type without following a pointer.
fn description(btf: &Btf<'_>, of: BtfType<'_>, to: &mut String) {
    write!(to, "{:?} {:?}", of.kind(), of.name()).expect("memory");
    match of.kind() {
        BtfKind::Struct | BtfKind::Union => {
            let composite = Composite::try_from(of).expect("the kind says so");
            for member in composite.iter() {
                write!(to, "; {:?} {:?} ", member.name, member.attr).expect("memory");
                description(btf, btf.type_by_id(member.ty).expect("a member has a type"), to);
            }
        }
        BtfKind::Array => {
            let array = Array::try_from(of).expect("the kind says so");
            write!(to, "[{}] ", array.capacity()).expect("memory");
            description(btf, array.contained_type(), to);
        }
        BtfKind::Enum => Enum::try_from(of)
            .expect("the kind says so")
            .iter()
            .for_each(|value| write!(to, " {value:?}").expect("memory")),
        BtfKind::Enum64 => Enum64::try_from(of)
            .expect("the kind says so")
            .iter()
            .for_each(|value| write!(to, " {value:?}").expect("memory")),
        BtfKind::Ptr => {}
        _ => of.next_type().into_iter().for_each(|next| description(btf, next, to)),
    }
}

/// By libbpf's reader; one name may have several types.
fn descriptions(btf: &Btf<'_>, name: &str) -> Vec<String> {
    let types = (1..).map_while(|number: u32| btf.type_by_id::<BtfType<'_>>(number.into()));
    let named = types.filter(|of| {
        let kinds = [BtfKind::Struct, BtfKind::Union, BtfKind::Enum, BtfKind::Enum64];
        of.name().is_some_and(|of| of == name) && kinds.contains(&of.kind())
    });
    let texts = named.map(|of| {
        let mut text = String::new();
        description(btf, of, &mut text);
        text
    });
    texts.collect()
}

#[test]
fn what_is_kept_is_as_it_was() {
    let Ok(kernel) = std::fs::read(KERNEL) else {
        return skip("what_is_kept_is_as_it_was", &format!("this kernel has no types ({KERNEL})"));
    };
    let file = tempfile::NamedTempFile::new().expect("a file");
    let reduced = with_names(&kernel, &TYPES).expect("the kernel's types");
    std::fs::write(&file, &reduced.types).expect("written");
    let all = Btf::from_path(KERNEL).expect("the kernel's types");
    let kept = Btf::from_path(&file).expect("the kept types");
    assert!(kept.len() * 10 < all.len(), "{} of {}", kept.len(), all.len());
    let task = all.type_by_id::<BtfType<'_>>(reduced.task_struct.into()).expect("a type");
    assert_eq!((task.kind(), task.name()), (BtfKind::Struct, Some("task_struct".as_ref())));
    for name in TYPES {
        let expected = descriptions(&all, name);
        assert!(!expected.is_empty(), "{name}");
        assert_eq!(descriptions(&kept, name), expected, "{name}");
    }
}

#[test]
fn what_is_cut_or_wrong_is_refused() {
    let Ok(kernel) = std::fs::read(KERNEL) else {
        return skip("what_is_cut_or_wrong_is_refused", &format!("this kernel has no types ({KERNEL})"));
    };
    let small = with_names(&kernel, &["qstr", "path", "cgroup_subsys_id"]).expect("the kernel's types").types;
    assert!(with_names(&small, &["path"]).is_some());
    for end in 0..small.len() {
        assert!(with_names(&small[..end], &["path"]).is_none(), "cut at {end}");
    }
    // Any word may be anything: read or refused, and what is read can be read again.
    for at in (0..small.len() - 3).step_by(4) {
        for word in [0, 1, 0x7fff_ffff, u32::MAX] {
            let mut wrong = small.clone();
            wrong[at..at + 4].copy_from_slice(&u32::to_ne_bytes(word));
            if let Some(read) = with_names(&wrong, &["path", "qstr", "cgroup_subsys_id"]) {
                assert!(
                    with_names(&read.types, &["path", "qstr", "cgroup_subsys_id"]).is_some(),
                    "{word:#x} at {at}"
                );
            }
        }
    }
}
