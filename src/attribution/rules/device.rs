//! Memory of devices: GPUs, RDMA, VFIO, virtual machines. By the kernel's names for them, by VmFlags (`io`,
//! `pf`: no pages of the machine's memory), and by the driver library that requested it; never by size.

use super::{Advice, Claim, Group, Rule, Subject, World};
use crate::attribution::callpath::Line;
use crate::attribution::category::{Category, CategoryInfo, Evidence, Instance, Merge};
use crate::ledger::RegionKind;

pub const DEVICE: Category = Category(&CategoryInfo {
    id: "device",
    color: 0x3560d7,
    name: "devices and their drivers",
    one: "mapping of a device",
    many: "mappings of devices",
});

const MEMORY: &str = "device memory or registers";
const RESERVED: &str = "address space reserved by the driver's library";

/// What the kernel calls mappings of a device's file, and what it is.
const NAMES: &[(&str, &str)] = &[
    ("/dev/nvidia-uvm", "NVIDIA GPU, unified memory"),
    ("/dev/nvidia", "NVIDIA GPU"),
    ("/dev/dri/", "GPU (DRM)"),
    ("/drm mm object", "GPU (DRM) buffer"),
    ("/i915", "Intel GPU buffer"),
    ("anon_inode:i915.gem", "Intel GPU buffer"),
    ("/dev/kfd", "AMD GPU (ROCm)"),
    ("/dev/accel/", "accelerator"),
    ("/dmabuf:", "buffer shared between devices (dma-buf)"),
    ("anon_inode:dmabuf", "buffer shared between devices (dma-buf)"),
    ("/dev/infiniband/", "RDMA adapter"),
    ("/dev/vfio/", "device passed through (VFIO)"),
    ("anon_inode:[vfio-device]", "device passed through (VFIO)"),
    ("anon_inode:kvm-vcpu", "virtual machine's processor (KVM)"),
    ("/dev/kvm", "virtual machine (KVM)"),
    ("/dev/snd/", "sound card"),
    ("/dev/video", "camera or video encoder"),
    ("/dev/fb", "frame buffer"),
    ("/dev/uio", "device driven by the program (UIO)"),
    ("/dev/mem", "physical memory"),
];

/// Below /dev, but no device's memory.
const OTHERS: &[&str] = &["/dev/zero", "/dev/shm/", "/dev/hugepages", "/dev/mqueue", "/dev/null"];

/// Libraries that reserve address space for what their device may map later: (beginning of the file's
/// name, what it is).
const LIBRARIES: &[(&str, &str)] = &[
    ("libcuda.so", "CUDA"),
    ("libnvidia-", "NVIDIA's driver"),
    ("libhsa-runtime64", "ROCm"),
    ("libamdhip64", "ROCm"),
    ("libze_intel_gpu", "Level Zero"),
    ("libigdrcl", "Intel's OpenCL"),
];

pub struct DeviceRule;

fn library(module: &str) -> Option<&'static str> {
    LIBRARIES.iter().find(|(start, _)| module.starts_with(start)).map(|(_, name)| *name)
}

fn known(name: &[u8]) -> Option<&'static str> {
    NAMES.iter().find(|(start, _)| name.starts_with(start.as_bytes())).map(|(_, what)| *what)
}

fn is_device_file(name: &[u8]) -> bool {
    known(name).is_some()
        || name.starts_with(b"/dev/") && !OTHERS.iter().any(|other| name.starts_with(other.as_bytes()))
}

impl Rule for DeviceRule {
    fn id(&self) -> &'static str {
        "device"
    }

    fn categories(&self) -> &'static [Category] {
        &[DEVICE]
    }

    fn by_name(&self, subject: &Subject<'_>, _world: &World<'_>) -> Option<Claim> {
        if subject.region.kind != RegionKind::File {
            return None;
        }
        let name = subject.name();
        let instance = || Instance::Named(name.to_vec());
        if is_device_file(name) {
            return Some(Claim::new(DEVICE, Evidence::Name, MEMORY).instance(instance()));
        }
        // perf's buffers have these flags, too
        let foreign = subject.has_flag("io") || subject.has_flag("pf");
        (foreign && !name.starts_with(b"anon_inode:"))
            .then(|| Claim::new(DEVICE, Evidence::Kernel, MEMORY).instance(instance()))
    }

    fn knows(&self, line: &Line) -> bool {
        library(&line.module).is_some()
    }

    fn by_stack(&self, subject: &Subject<'_>, _world: &World<'_>, at: usize) -> Option<Claim> {
        let path = subject.path?;
        if !subject.is_private_anonymous() || at != path.caller() {
            return None;
        }
        let part = if subject.is_reserved() { RESERVED } else { "memory of the driver's library" };
        let own = path.run(at, |line| library(&line.module).is_some()).len();
        Some(Claim::new(DEVICE, Evidence::Stack, part).merge(Merge::ByCaller(at + own)))
    }

    fn advise(&self, group: &Group<'_>, _world: &World<'_>) -> Advice {
        let asker = group.path.and_then(|path| path.lines.iter().find_map(|line| library(&line.module)));
        if let Some(asker) = asker.filter(|_| group.part(MEMORY).virt == 0) {
            let mut advice = Advice::why(format!(
                "{asker} reserves addresses for all memory that the device and the machine could ever share, \
                 so that a pointer means the same on both; it costs nothing until used"
            ))
            .wont("ulimit -v", "the device could not be used: its library needs the addresses");
            advice.title = Some(format!("address space of {asker}"));
            return advice;
        }
        let mut names: Vec<&'static str> = group.names().filter_map(known).collect();
        names.sort_unstable();
        names.dedup();
        let mut advice = Advice::why(
            "the driver maps memory or registers of the device, or pages that it shares with the device; what \
             is no page of the machine's memory counts as VIRT and never as RSS",
        );
        if let [name] = names.as_slice() {
            advice.title = Some(match group.instances {
                1 => format!("mapping of a device: {name}"),
                n => format!("{n} mappings of a device: {name}"),
            });
        }
        advice
    }
}
