//! One of the two reports, proven to add up.

use super::model::{SideFacts, SideSource};
use super::select::{Pick, SelectError, select};
use crate::report::model::{Process, Region, Report};

/// A report that contradicts itself, or that this version cannot read.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum Unsound {
    #[error("schema {0}: this vmaudit knows schema 1 (docs/report.md)")]
    Schema(u32),
    #[error("process {pid}: region {at} ({start}-{end}) makes no sense: {why}")]
    Region { pid: i32, at: usize, start: String, end: String, why: &'static str },
    #[error("process {pid}: its regions add up to {regions} bytes of {what}, its totals say {totals}")]
    Sum { pid: i32, what: &'static str, regions: u64, totals: u64 },
    #[error("its processes together are larger than any address space")]
    TooLarge,
}

/// Figures of a piece, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Figures {
    pub virt: u64,
    pub rss: u64,
    pub swap: u64,
    pub writable: u64,
    pub reserved: u64,
}

impl Figures {
    pub fn of(region: &Region) -> Figures {
        let writable = region.prot.as_bytes().get(1) == Some(&b'w');
        let reserved = region.prot.starts_with("---");
        Figures {
            virt: region.virt,
            rss: region.rss,
            swap: region.swap,
            writable: if writable { region.virt } else { 0 },
            reserved: if reserved { region.virt } else { 0 },
        }
    }

    pub fn unused(&self) -> u64 {
        self.virt.saturating_sub(self.rss).saturating_sub(self.swap)
    }
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.virt += other.virt;
        self.rss += other.rss;
        self.swap += other.swap;
        self.writable += other.writable;
        self.reserved += other.reserved;
    }
}

/// A region of a process that is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// Index into `Side::processes`.
    pub process: usize,
    pub region: &'a Region,
    pub start: u64,
    pub end: u64,
}

impl Item<'_> {
    pub fn stack(&self) -> Option<u64> {
        self.region.origin.as_ref()?.stack
    }
}

/// The processes of a report that are to be compared.
#[derive(Debug)]
pub struct Side<'a> {
    pub(super) report: &'a Report,
    pub(super) processes: Vec<&'a Process>,
    pub(super) items: Vec<Item<'a>>,
    pub(super) facts: SideFacts,
}

impl<'a> Side<'a> {
    /// Checks a report, and picks processes. `source` and `kind` are what [`SideFacts`] calls so.
    ///
    /// # Errors
    /// When the report contradicts itself, or has no such process.
    pub fn new(report: &'a Report, (source, kind): (&str, &str), pick: Pick) -> Result<Side<'a>, SideError> {
        if report.schema != crate::report::SCHEMA {
            return Err(Unsound::Schema(report.schema).into());
        }
        let processes = select(report, pick)?;
        let mut items = Vec::new();
        let mut sum = 0u64;
        for (index, process) in processes.iter().enumerate() {
            items.extend(checked(index, process)?);
            sum = sum.checked_add(process.totals.virt).ok_or(Unsound::TooLarge)?;
        }
        if sum > i64::MAX as u64 {
            return Err(Unsound::TooLarge.into());
        }
        let with_stack = items.iter().filter(|i| i.stack().is_some()).map(|i| i.region.virt).sum();
        let first = processes.first();
        let facts = SideFacts {
            of: first
                .map(|p| SideSource::of_process(p.pid, (&p.comm, &p.exe), &p.cmdline))
                .unwrap_or_default()
                .read_from((source, kind), &report.backend),
            aslr: processes.iter().any(|p| p.aslr),
            processes: report.processes.len() as u64,
            compared: processes.len() as u64,
            with_stack,
        };
        Ok(Side { report, processes, items, facts })
    }

    pub fn report(&self) -> &'a Report {
        self.report
    }

    /// What it was read from.
    pub fn source(&self) -> &str {
        &self.facts.of.source
    }

    /// Those that are compared.
    pub fn processes(&self) -> &[&'a Process] {
        &self.processes
    }

    /// Whether it is known of every process what is in memory.
    pub(super) fn knows_residency(&self) -> bool {
        self.processes.iter().all(|p| p.residency != "none")
    }

    pub(super) fn has_stacks(&self) -> bool {
        self.facts.with_stack > 0
    }
}

/// Why a side cannot be compared.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum SideError {
    #[error("the report contradicts itself or cannot be read: {0}")]
    Unsound(#[from] Unsound),
    #[error("{0}")]
    Select(#[from] SelectError),
}

/// The regions of a process: sorted, disjoint, and in sum what its totals say.
fn checked<'a>(index: usize, process: &'a Process) -> Result<Vec<Item<'a>>, Unsound> {
    let pid = process.pid;
    let mut items: Vec<Item<'a>> = Vec::with_capacity(process.regions.len());
    let mut sum = Figures::default();
    for (at, region) in process.regions.iter().enumerate() {
        let unsound =
            |why| Unsound::Region { pid, at, start: region.start.clone(), end: region.end.clone(), why };
        let (Some(start), Some(end)) = (hex(&region.start), hex(&region.end)) else {
            return Err(unsound("no hexadecimal addresses"));
        };
        if end.checked_sub(start) != Some(region.virt) {
            return Err(unsound("its length is not its VIRT"));
        }
        if end > 1 << 63 {
            return Err(unsound("it lies in the kernel's half"));
        }
        if items.last().is_some_and(|last| start < last.end) {
            return Err(unsound("it begins before the one before it ends"));
        }
        if region.rss.checked_add(region.swap).is_none_or(|used| used > region.virt) {
            return Err(unsound("more of it is in memory and swap than it is long"));
        }
        sum += Figures::of(region);
        items.push(Item { process: index, region, start, end });
    }
    let totals = &process.totals;
    let sums = [
        ("VIRT", sum.virt, totals.virt),
        ("RSS", sum.rss, totals.rss),
        ("swap", sum.swap, totals.swap),
        ("writable", sum.writable, totals.writable),
        ("reserved", sum.reserved, totals.reserved),
    ];
    match sums.into_iter().find(|(_, regions, totals)| regions != totals) {
        Some((what, regions, totals)) => Err(Unsound::Sum { pid, what, regions, totals }),
        None => Ok(items),
    }
}

/// `0x…`.
pub(super) fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{CategoryRow, Totals};

    fn row(id: &str, [virt, writable, reserved, rss, swap]: [u64; 5]) -> CategoryRow {
        CategoryRow { id: id.to_owned(), virt, writable, reserved, rss, swap, ..CategoryRow::default() }
    }

    #[test]
    fn stand_ins_add_up_to_the_totals() {
        let categories = vec![
            row("loader", [0x5000, 0x1000, 0x1000, 0x4000, 0]),
            row("stack", [0x21000, 0x21000, 0, 0x3000, 0x1000]),
            row("other", [0x1000, 0, 0, 0, 0]),
        ];
        let totals = Totals {
            virt: 0x27000,
            rss: 0x7000,
            swap: 0x1000,
            writable: 0x22000,
            reserved: 0x1000,
            ..Totals::default()
        };
        let small = Process { pid: 7, left_out: 23, totals, categories, ..Process::default() };
        let whole = Process { pid: 6, ..Process::default() };
        let report = Report { schema: 1, processes: vec![whole, small], ..Report::default() };
        assert!(Side::new(&report, ("a", "report"), Pick::All).is_err());
        let report = report.with_stand_ins();
        assert_eq!(report.processes[0].regions, []);
        assert_eq!(report.processes[1].regions.len(), 5);
        // A comparison proves that they are sorted, disjoint, and add up.
        Side::new(&report, ("a", "report"), Pick::All).expect("sound");
    }
}
