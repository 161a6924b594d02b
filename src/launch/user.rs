//! The user that the command runs as: under sudo, the user who invoked it.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist, setgroups, setresgid, setresuid};
use std::ffi::{CString, OsStr, OsString};

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

/// The environment says that sudo is behind this process, and not for which user.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SudoError {
    #[error(
        "the environment has {name}={value:?}, which is no user or group number, so it is not known which user \
         runs the command and owns its files; {SUDO_REMEDY}"
    )]
    NoNumber { name: &'static str, value: String },
    #[error(
        "the environment has {there} and not {missing}, so it is not known which user runs the command and \
         owns its files; {SUDO_REMEDY}"
    )]
    Half { there: &'static str, missing: &'static str },
}

const SUDO_REMEDY: &str =
    "sudo vmaudit … sets both; to stay root for all, unset both: env -u SUDO_UID -u SUDO_GID vmaudit …";

/// SUDO_UID and SUDO_GID, parsed; None where neither is there, or the user is root.
fn sudo_ids(uid: Option<OsString>, gid: Option<OsString>) -> Result<Option<(Uid, Gid)>, SudoError> {
    let (uid, gid) = match (uid, gid) {
        (None, None) => return Ok(None),
        (Some(uid), Some(gid)) => (number("SUDO_UID", &uid)?, number("SUDO_GID", &gid)?),
        (Some(_), None) => return Err(SudoError::Half { there: "SUDO_UID", missing: "SUDO_GID" }),
        (None, Some(_)) => return Err(SudoError::Half { there: "SUDO_GID", missing: "SUDO_UID" }),
    };
    Ok((uid != 0).then(|| (Uid::from_raw(uid), Gid::from_raw(gid))))
}

/// Digits only; all ones means "leave it as it is" in setresuid(2) and chown(2).
fn number(name: &'static str, value: &OsStr) -> Result<u32, SudoError> {
    let digits = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let parsed = digits.and_then(|digits| digits.parse().ok()).filter(|&number| number != u32::MAX);
    parsed.ok_or_else(|| SudoError::NoNumber { name, value: value.to_string_lossy().into_owned() })
}

impl TargetUser {
    /// The user behind sudo, if this process is root through sudo.
    ///
    /// # Errors
    /// When the environment does not say which user.
    pub fn behind_sudo() -> Result<Option<TargetUser>, SudoError> {
        Ok(ids_behind_sudo()?.map(|(uid, gid)| TargetUser::new(uid, gid)))
    }

    fn new(uid: Uid, gid: Gid) -> TargetUser {
        // A user who is not in the password database still has a number.
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

fn ids_behind_sudo() -> Result<Option<(Uid, Gid)>, SudoError> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    sudo_ids(std::env::var_os("SUDO_UID"), std::env::var_os("SUDO_GID"))
}

/// Numbers of the user and group behind sudo, if this process is root through sudo.
///
/// # Errors
/// When the environment does not say which user.
pub fn behind_sudo() -> Result<Option<(u32, u32)>, SudoError> {
    Ok(ids_behind_sudo()?.map(|(uid, gid)| (uid.as_raw(), gid.as_raw())))
}

pub const STEPS: [&str; 3] = ["setgroups", "setresgid", "setresuid"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_needs_both_numbers_and_what_is_none_is_never_root() {
        let ids = |uid: &str, gid: &str| sudo_ids(Some(uid.into()), Some(gid.into()));
        assert_eq!(ids("1000", "100"), Ok(Some((Uid::from_raw(1000), Gid::from_raw(100)))));
        assert_eq!(ids("0", "0"), Ok(None));
        assert_eq!(sudo_ids(None, None), Ok(None));
        for bad in ["", "-1", "+5", " 5", "5x", "0x5", "4294967295", "4294967296", "root"] {
            assert!(matches!(ids(bad, "100"), Err(SudoError::NoNumber { name: "SUDO_UID", .. })), "{bad}");
            assert!(matches!(ids("1000", bad), Err(SudoError::NoNumber { name: "SUDO_GID", .. })), "{bad}");
        }
        let half = |there, missing| Err(SudoError::Half { there, missing });
        assert_eq!(sudo_ids(Some("1000".into()), None), half("SUDO_UID", "SUDO_GID"));
        assert_eq!(sudo_ids(None, Some("1000".into())), half("SUDO_GID", "SUDO_UID"));
    }

    #[test]
    fn an_unknown_user_keeps_its_numbers() {
        let user = TargetUser::new(Uid::from_raw(3_999_999_998), Gid::from_raw(77));
        assert_eq!(user.name, "3999999998");
        assert_eq!(user.groups, [Gid::from_raw(77)]);
    }
}
