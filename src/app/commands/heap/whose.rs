//! Whose heap is examined: running processes by number, or all of a container or a cgroup.

use crate::app::error::AppError;
use crate::cli::HeapArgs;
use crate::containers::Container;
use crate::launch::Process;
use crate::model::Pid;
use crate::session::SessionError;
use crate::session::start::Start;
use crate::session::targets::contained::members;
use crate::session::targets::named_container;
use crate::session::tracer::TracerOptions;

pub struct Whose {
    /// Those that run now.
    pub pids: Vec<Pid>,
    container: Option<Container>,
}

impl Whose {
    /// # Errors
    /// When there is no such container, or no process in it.
    pub fn of(args: &HeapArgs) -> Result<Whose, AppError> {
        let container = named_container(args.of.named())?;
        let pids = match &container {
            Some(container) => members(container)?.iter().map(Process::pid).collect(),
            None => args.of.pids.clone(),
        };
        Ok(Whose { pids, container })
    }

    /// A process that enters a container later belongs to it, as children do.
    ///
    /// # Errors
    /// As [`Start::running`].
    pub fn start(&self, args: &HeapArgs, tracing: TracerOptions) -> Result<Start<'_>, SessionError> {
        match &self.container {
            Some(container) => Start::container(container, !args.no_follow_forks, tracing),
            None => Start::running(&self.pids, tracing),
        }
    }

    /// As the report calls the container.
    pub fn name(&self) -> Option<String> {
        self.container.as_ref().map(|container| container.name.clone())
    }
}
