//! What /proc reports about one process, gathered as plain data: [`observe`].
//!
//! Parsing and opening are apart: `maps`, `smaps`, `status`, `task_files` and `page_runs`
//! turn bytes into values and touch no file; `process_dir`, `memory`, `headers`,
//! `pagemap`, `pagemap_scan`, `procmap_query`, `residency`, `marks`, `loader_data`, `thread_blocks`, `stack_lists` and `threads` read;
//! `address_space` reads maps and pages together, `observe` joins all. The crate `procfs` holds the process's directory open, lists its threads, and parses
//! status and limits; maps and smaps are parsed here, because their names may be any bytes and
//! there may be tens of thousands of lines.

mod address_space;
mod brief;
mod bss;
mod details;
mod error;
mod headers;
mod limits;
mod loader_data;
mod mapping_at;
mod maps;
mod marks;
mod memory;
mod observe;
mod process_dir;
mod residency;
mod rollup;
mod saved;
mod smaps;
mod stack_lists;
mod status;
mod task_files;
mod thread_blocks;
mod threads;

pub use brief::{Brief, process_numbers, read_brief};
pub use error::ObserveError;
pub use mapping_at::mapping_at;
pub use maps::{DamagedLine, LineFault, ParsedMaps, parse_line, parse_maps};
pub use marks::read_variables;
pub use observe::{ObserveOptions, observe, read_status};
pub use rollup::{Shares, read_shares};
pub use saved::{SavedError, SavedFault, SavedMaps, parse_saved};
pub use smaps::{ParsedSmaps, SmapsEntry, parse_smaps};
pub use status::{ProcessLimits, ProcessStatus, parse_limits, parse_status};
pub use task_files::{ThreadPlace, parse_cmdline, parse_comm, parse_no_randomize, parse_syscall};
