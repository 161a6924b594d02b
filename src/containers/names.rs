//! Container IDs in cgroup paths, as the engines write them.
//!
//! ```text
//! /docker/ID                                             Docker, cgroupfs driver
//! /system.slice/docker-ID.scope                          Docker, systemd driver
//! /libpod_parent/libpod-ID   …/libpod-ID.scope/container Podman; libpod-conmon-ID is its monitor
//! /kubepods/burstable/podUID/ID                          containerd, CRI-O
//! /kubepods.slice/…-podUID.slice/cri-containerd-ID.scope
//! /default/NAME                                          ctr and nerdctl: any name
//! /lxc.payload.NAME  /machine.slice/machine-NAME.scope   LXC, systemd-nspawn
//! ```

/// Hexadecimal digits of a whole ID.
const ID_LEN: usize = 64;

/// Components of engines' helpers, outside the container.
const MONITORS: [&str; 2] = ["libpod-conmon-", "crio-conmon-"];

/// The IDs in a cgroup path, outermost first: containers can run containers.
pub fn ids_in(path: &[u8]) -> Vec<&str> {
    components(path).filter_map(|(_, name)| id_in(name)).collect()
}

/// The path up to and with the component of the container with this ID.
pub fn path_of_id<'a>(path: &'a [u8], id: &str) -> Option<&'a [u8]> {
    let found = components(path).find(|(_, name)| id_in(name) == Some(id));
    found.and_then(|(end, _)| path.get(..end))
}

/// The path up to and with the component that is a container called `name`, by the engines that put
/// names there.
pub fn path_of_name<'a>(path: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let names = [
        name.to_owned(),
        format!("lxc.payload.{name}"),
        format!("machine-{name}.scope"),
        format!("systemd-nspawn@{name}.service"),
    ];
    let found = components(path).find(|(_, component)| names.iter().any(|w| w == component));
    found.and_then(|(end, _)| path.get(..end))
}

/// Each component with where it ends in the path; what is not UTF-8 is no engine's.
fn components(path: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    path.split(|&b| b == b'/').filter_map(move |name| {
        let end = at + name.len();
        at = end + 1;
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty()).map(|name| (end, name))
    })
}

/// `docker-ID.scope`, `libpod-ID`, `ID`.
fn id_in(component: &str) -> Option<&str> {
    if MONITORS.iter().any(|monitor| component.starts_with(monitor)) {
        return None;
    }
    let plain = component.strip_suffix(".scope").unwrap_or(component);
    // An engine's name goes before it (cri-containerd-ID), or a sandbox's and a colon.
    let last = plain.rsplit(['-', ':']).next()?;
    is_id(last).then_some(last)
}

/// A whole ID.
pub fn is_id(text: &str) -> bool {
    text.len() == ID_LEN && is_hex(text)
}

/// What the beginning of an ID can be.
pub fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The engine whose way of naming cgroups this is, where that is known.
pub fn engine_of(path: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(path);
    let marks = [
        ("libpod-", "podman"),
        ("crio-", "cri-o"),
        ("cri-containerd-", "containerd"),
        ("docker", "docker"),
        ("kubepods", "kubernetes"),
        ("lxc.payload", "lxc"),
        ("machine.slice", "machined"),
    ];
    marks.into_iter().find(|(mark, _)| text.contains(mark)).map(|(_, engine)| engine)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b9f0e2a1c4f6b";
    const B: &str = "af152003872b691089309ea66ab6d7b93c25901fc36f0e97559f014473d2159c";

    #[test]
    fn ids_by_each_engine() {
        for path in [
            format!("/docker/{A}"),
            format!("/system.slice/docker-{A}.scope"),
            format!("/machine.slice/libpod-{A}.scope/container"),
            format!("/libpod_parent/libpod-{A}"),
            format!("/kubepods/burstable/pod0d6e1c2e-1111-2222-3333-444455556666/{A}"),
            format!("/kubepods.slice/kubepods-pod0d.slice/cri-containerd-{A}.scope"),
            format!("/kubepods.slice/crio-{A}.scope/app/worker"),
            format!("/kubepods-pod0d.slice:cri-containerd:{A}"),
        ] {
            assert_eq!(ids_in(path.as_bytes()), [A], "{path}");
        }
        for path in ["/", "/user.slice", "/docker/short", &format!("/machine.slice/libpod-conmon-{A}.scope")]
        {
            assert!(ids_in(path.as_bytes()).is_empty(), "{path}");
        }
    }

    #[test]
    fn the_path_ends_with_the_container_and_nested_ones_are_distinguished() {
        let nested = format!("/docker/{A}/docker/{B}/init");
        assert_eq!(ids_in(nested.as_bytes()), [A, B]);
        let up_to = |id| path_of_id(nested.as_bytes(), id).map(|p| String::from_utf8_lossy(p).into_owned());
        assert_eq!(up_to(A), Some(format!("/docker/{A}")));
        assert_eq!(up_to(B), Some(format!("/docker/{A}/docker/{B}")));
        assert_eq!(path_of_name(b"/default/web/x", "web"), Some(b"/default/web".as_slice()));
        assert_eq!(path_of_name(b"/lxc.payload.web/x", "web"), Some(b"/lxc.payload.web".as_slice()));
        assert_eq!(path_of_name(b"/default/web2", "web"), None);
    }
}
