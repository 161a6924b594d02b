//! Whom the command runs as: under sudo, the user who invoked it.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist, setgroups, setresgid, setresuid};
use std::ffi::{CString, OsString};

/// The user to become, complete, so that becoming it takes system calls only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetUser {
    pub name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// HOME, USER, LOGNAME, SHELL as the password database has them.
    pub environment: Vec<(OsString, OsString)>,
}

/// sudo's own variables: the command is to run as if its user had started it directly.
pub const SUDO_VARIABLES: [&str; 4] = ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND"];

/// SUDO_UID and SUDO_GID, parsed; None unless both are there and the user is not root. Without
/// SUDO_GID there is no sudo behind it.
fn sudo_ids(uid: Option<OsString>, gid: Option<OsString>) -> Option<(Uid, Gid)> {
    let number = |value: Option<OsString>| value?.to_str()?.parse::<u32>().ok();
    let (uid, gid) = (number(uid)?, number(gid)?);
    (uid != 0).then(|| (Uid::from_raw(uid), Gid::from_raw(gid)))
}

impl TargetUser {
    /// The user behind sudo, if this process is root through sudo.
    pub fn behind_sudo() -> Option<TargetUser> {
        if !Uid::effective().is_root() {
            return None;
        }
        let (uid, gid) = sudo_ids(std::env::var_os("SUDO_UID"), std::env::var_os("SUDO_GID"))?;
        Some(TargetUser::new(uid, gid))
    }

    fn new(uid: Uid, gid: Gid) -> TargetUser {
        // A user whom the password database does not know still has a number.
        let Some(user) = User::from_uid(uid).ok().flatten() else {
            return TargetUser {
                name: uid.to_string(),
                uid,
                gid,
                groups: vec![gid],
                environment: Vec::new(),
            };
        };
        let groups = CString::new(user.name.as_bytes())
            .ok()
            .and_then(|name| getgrouplist(&name, gid).ok())
            .unwrap_or_else(|| vec![gid]);
        let environment = vec![
            ("HOME".into(), user.dir.into()),
            ("USER".into(), user.name.clone().into()),
            ("LOGNAME".into(), user.name.clone().into()),
            ("SHELL".into(), user.shell.into()),
        ];
        TargetUser { name: user.name, uid, gid, groups, environment }
    }

    /// Becomes the user for good. On failure: at which step (an index into [`STEPS`]).
    pub fn become_it(&self) -> Result<(), (usize, Errno)> {
        setgroups(&self.groups).map_err(|errno| (0, errno))?;
        setresgid(self.gid, self.gid, self.gid).map_err(|errno| (1, errno))?;
        setresuid(self.uid, self.uid, self.uid).map_err(|errno| (2, errno))
    }
}

/// Numbers of the user and group behind sudo, if this process is root through sudo.
pub fn behind_sudo() -> Option<(u32, u32)> {
    TargetUser::behind_sudo().map(|user| (user.uid.as_raw(), user.gid.as_raw()))
}

pub const STEPS: [&str; 3] = ["setgroups", "setresgid", "setresuid"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_needs_both_numbers_and_another_user() {
        let ids = |uid: &str, gid: &str| sudo_ids(Some(uid.into()), Some(gid.into()));
        assert_eq!(ids("1000", "100"), Some((Uid::from_raw(1000), Gid::from_raw(100))));
        assert_eq!(ids("0", "0"), None);
        assert_eq!(ids("", "100"), None);
        assert_eq!(ids("-1", "100"), None);
        assert_eq!(sudo_ids(Some("1000".into()), None), None);
    }

    #[test]
    fn an_unknown_user_keeps_its_numbers() {
        let user = TargetUser::new(Uid::from_raw(3_999_999_998), Gid::from_raw(77));
        assert_eq!(user.name, "3999999998");
        assert_eq!(user.groups, [Gid::from_raw(77)]);
    }
}
