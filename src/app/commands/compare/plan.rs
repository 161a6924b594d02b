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

    /// The change that the command line asks for.
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

    /// A change in environment and limits.
    pub fn of_change(change: Change) -> Plan {
        let environment: Vec<(OsString, Option<OsString>)> = change
            .env
            .iter()
            .map(|(name, value)| (name.into(), value.as_ref().map(OsString::from)))
            .collect();
        let options = options(&environment, change.stack_limit);
        Plan { change, options, args: Vec::new() }
    }
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
