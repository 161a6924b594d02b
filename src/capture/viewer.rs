//! Passes to a BPF object for which user its events are (bpf/may_see.h).

/// Fills in `struct vmaudit_viewer` of an object's read-only data, before it is loaded.
macro_rules! set_viewer {
    ($rodata:expr) => {
        if let Some(viewer) = $crate::rights::viewer() {
            $rodata.viewer.limited = 1;
            $rodata.viewer.uid = viewer.uid;
            $rodata.viewer.gid = viewer.gid;
            $rodata.viewer.user_namespace = viewer.user_namespace;
        }
    };
}

pub(super) use set_viewer;

/// What the user should know where traced tasks became hidden.
pub(super) fn hidden() -> String {
    let uid = crate::rights::viewer().map_or_else(String::new, |viewer| viewer.uid.to_string());
    format!(
        "some of what was traced may not be inspected by uid {uid}: programs with privileges of their own (setuid, \
         file capabilities), or that forbid it (prctl PR_SET_DUMPABLE). Nothing of them is recorded from there \
         on; sudo vmaudit … sees them, too"
    )
}
