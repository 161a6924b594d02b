//! `vmaudit run -- docker exec …`: what the command starts is not its child. The engine puts it into
//! the container's cgroup; from there on the kernel's side knows it (bpf/cgroup.h).

use super::container_view::ContainerView;
use crate::containers::{self, Client, Container};
use crate::model::Pid;
use crate::model::clean;
use crate::session::audits::Audits;
use crate::session::pipeline::Pipeline;
use crate::session::say::say;
use std::ffi::OsString;

/// The container that a command enters, if it is a client's that does. Says what will be traced.
pub fn container_of(command: &[OsString]) -> Option<Container> {
    match containers::recognise(command)? {
        Client::Starts { program, verb } => {
            say(format_args!(
                "{program} {verb}: what runs in a container is started by the engine, not by this command, and is \
                 not traced: trace it with vmaudit attach --container NAME once it runs"
            ));
            None
        }
        Client::Exec { program, container: None } => {
            say(format_args!(
                "{program} exec: the command line does not name the container: only {program} itself is traced"
            ));
            None
        }
        Client::Exec { program, container: Some(name) } => match containers::by_name(&name) {
            Ok(container) => {
                say(format_args!(
                    "{program} exec: the program is put into the container {} by the engine; traced is what enters \
                     its cgroup from outside while {program} runs, and {program} itself",
                    clean(&container.name)
                ));
                Some(container)
            }
            Err(error) => {
                say(format_args!("{error}\nonly {program} itself is traced"));
                None
            }
        },
    }
}

/// For the report.
pub fn view_of(container: Option<&Container>, client: Pid) -> ContainerView {
    container.cloned().map(|container| ContainerView::entered(container, client)).unwrap_or_default()
}

/// The process that comes first in the report: the first that was put into the container, if one was.
pub fn main_process(client: Pid, container: Option<&Container>, audits: &Audits, pipeline: &Pipeline) -> Pid {
    let Some(container) = container else { return client };
    let processes = pipeline.spaces.processes();
    // A process without a known parent that is not the command was marked by where it is.
    let put_there =
        |pid: Pid| pipeline.spaces.process(pid).is_some_and(|p| p.parent.is_none()) && pid != client;
    let first = processes.iter().map(|process| process.pid);
    let first = first
        .clone()
        .find(|&pid| audits.containers.is_inside(pid))
        .or_else(|| first.clone().find(|&pid| put_there(pid)));
    if first.is_none() {
        say(format_args!("nothing was executed in {} from outside meanwhile", clean(&container.name)));
    }
    first.unwrap_or(client)
}
