//! What one side's runs are started with.

use crate::cli::CompareArgs;
use crate::compare::model::Change;
use std::ffi::OsString;

/// A change, as shown and as it is passed on; the latter may hold any bytes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub change: Change,
    /// Options of `vmaudit run`.
    pub options: Vec<OsString>,
    /// Appended to the command.
    pub args: Vec<OsString>,
}

impl Plan {
    pub fn as_it_is() -> Plan {
        Plan::default()
    }

    /// The change that the command line requests.
    pub fn of_arguments(args: &CompareArgs) -> Plan {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let environment = args.change.environment();
        let change = Change {
            env: environment.iter().map(|(name, value)| (text(name), value.as_ref().map(text))).collect(),
            args: args.arg.iter().map(text).collect(),
            stack_limit: args.change.stack_limit,
        };
        let options = options(&environment, change.stack_limit);
        Plan { change, options, args: args.arg.clone() }
    }

    /// What the command finds in a variable.
    pub fn variable(&self, name: &str) -> Option<String> {
        self.change.env.get(name).cloned().unwrap_or_else(|| std::env::var(name).ok())
    }

    /// `change` is this plan's, and more of it.
    pub fn with(&self, change: Change) -> Plan {
        let more = change.env.iter().filter(|(name, value)| self.change.env.get(*name) != Some(value));
        let environment: Vec<(OsString, Option<OsString>)> =
            more.map(|(name, value)| (name.into(), value.as_ref().map(OsString::from))).collect();
        let stack_limit = change.stack_limit.filter(|_| change.stack_limit != self.change.stack_limit);
        // a variable that is set again is given once
        let given = self.options.iter().filter(|option| {
            let again = |name: &str| option.as_encoded_bytes().starts_with(name.as_bytes());
            let variable = |(name, _): &(OsString, Option<OsString>)| is_of(option, name);
            let again = stack_limit.is_some() && again("--stack-limit=");
            !(again || environment.iter().any(variable))
        });
        let mut all: Vec<OsString> = given.cloned().collect();
        all.extend(options(&environment, stack_limit));
        let own = change.args.get(self.change.args.len()..).unwrap_or_default();
        let args = self.args.iter().cloned().chain(own.iter().map(OsString::from)).collect();
        Plan { change, options: all, args }
    }
}

/// `--env=NAME=…` or `--unset-env=NAME`.
fn is_of(option: &OsString, name: &OsString) -> bool {
    let (option, name) = (option.as_encoded_bytes(), name.as_encoded_bytes());
    let set = option.strip_prefix(b"--env=").and_then(|rest| rest.strip_prefix(name));
    set.is_some_and(|rest| rest.starts_with(b"=")) || option.strip_prefix(b"--unset-env=") == Some(name)
}

fn options(environment: &[(OsString, Option<OsString>)], stack_limit: Option<u64>) -> Vec<OsString> {
    let mut options = Vec::new();
    for (name, value) in environment {
        let mut option = OsString::from(if value.is_some() { "--env=" } else { "--unset-env=" });
        option.push(name);
        if let Some(value) = value {
            option.push("=");
            option.push(value);
        }
        options.push(option);
    }
    options.extend(stack_limit.map(|bytes| OsString::from(format!("--stack-limit={bytes}"))));
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_more() {
        let change = |env: &[(&str, Option<&str>)], args: &[&str]| Change {
            env: env.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            stack_limit: None,
        };
        let first = Plan::as_it_is().with(change(&[("A", Some("1")), ("B", None)], &["x"]));
        assert_eq!(first.options, ["--env=A=1", "--unset-env=B"]);
        let more = Change {
            stack_limit: Some(65_536),
            ..change(&[("A", Some("1")), ("B", Some("2")), ("AB", Some("3"))], &["x", "y"])
        };
        let second = first.with(more);
        assert_eq!(second.options, ["--env=A=1", "--env=AB=3", "--env=B=2", "--stack-limit=65536"]);
        assert_eq!(second.args, ["x", "y"]);
    }
}
