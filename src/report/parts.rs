//! A report in parts, none of which is large: a recording keeps them as rows, and a process can be read
//! without the others.
//!
//! The first part is the report with its main process. Then follow objects with `processes` (one each),
//! `regions` (more of the process before), `stacks`.

use super::model::{Process, Region, Report, Stack};
use super::per_frame::classify_all;
use serde::{Deserialize, Serialize};

/// Regions of a process in one part, and stacks.
const REGIONS: usize = 1024;
const STACKS: usize = 256;

/// A part but the first one.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct More {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<Process>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<Region>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stacks: Vec<Stack>,
}

impl Report {
    /// A report that was written as JSON, perhaps by a version without roles.
    ///
    /// # Errors
    /// When it is no such JSON.
    pub fn from_json(json: &[u8]) -> Result<Report, serde_json::Error> {
        let mut report: Report = serde_json::from_slice(json)?;
        classify_all(&mut report.stacks);
        Ok(report)
    }

    /// Hands each part over as JSON.
    ///
    /// # Errors
    /// None in practice: the model holds nothing that JSON cannot say.
    pub fn into_parts(mut self, each: &mut dyn FnMut(String)) -> Result<(), serde_json::Error> {
        let mut stacks = std::mem::take(&mut self.stacks);
        let mut processes = std::mem::take(&mut self.processes).into_iter();
        let mut regions = Vec::new();
        if let Some(mut main) = processes.next() {
            regions = rest(&mut main.regions, REGIONS);
            self.processes.push(main);
        }
        each(serde_json::to_string(&self)?);
        drop(self);
        loop {
            while !regions.is_empty() {
                let next = rest(&mut regions, REGIONS);
                each(serde_json::to_string(&More { regions, ..More::default() })?);
                regions = next;
            }
            let Some(mut process) = processes.next() else { break };
            regions = rest(&mut process.regions, REGIONS);
            each(serde_json::to_string(&More { processes: vec![process], ..More::default() })?);
        }
        while !stacks.is_empty() {
            let next = rest(&mut stacks, STACKS);
            each(serde_json::to_string(&More { stacks, ..More::default() })?);
            stacks = next;
        }
        Ok(())
    }
}

/// All after the first `count`, which stay.
fn rest<T>(all: &mut Vec<T>, count: usize) -> Vec<T> {
    all.split_off(count.min(all.len()))
}

/// The parts that were read so far.
#[derive(Default)]
pub struct Parts(Option<Report>);

impl Parts {
    /// The next part.
    ///
    /// # Errors
    /// When it is no such JSON, or has regions of no process.
    pub fn add(&mut self, json: &[u8]) -> Result<(), serde_json::Error> {
        let Some(report) = &mut self.0 else {
            self.0 = Some(serde_json::from_slice(json)?);
            return Ok(());
        };
        let More { mut processes, mut regions, mut stacks } = serde_json::from_slice(json)?;
        report.processes.append(&mut processes);
        if !regions.is_empty() {
            let last = report.processes.last_mut();
            let last = last.ok_or_else(|| serde::de::Error::custom("regions of no process"))?;
            last.regions.append(&mut regions);
        }
        report.stacks.append(&mut stacks);
        Ok(())
    }

    /// All of it.
    pub fn into_report(self) -> Report {
        let mut report = self.0.unwrap_or_default();
        classify_all(&mut report.stacks);
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(regions: &[usize], stacks: usize) -> Report {
        let process = |(pid, &regions): (usize, &usize)| Process {
            pid: pid as i32 + 1,
            regions: (0..regions as u64).map(|virt| Region { virt, ..Region::default() }).collect(),
            ..Process::default()
        };
        let mut report = Report {
            schema: 1,
            processes: regions.iter().enumerate().map(process).collect(),
            stacks: vec![Stack::new(Vec::new(), "complete"); stacks],
            ..Report::default()
        };
        classify_all(&mut report.stacks);
        report
    }

    #[test]
    fn parts_make_the_report_and_none_is_large() {
        for (regions, stacks, count) in [
            (&[][..], 0, 1),
            (&[3], 1, 2),
            (&[0, 0, 0], 0, 3),
            (&[REGIONS], STACKS, 2),
            (&[REGIONS + 1, 7, 2 * REGIONS + 5, 0], 2 * STACKS + 1, 2 + 1 + 3 + 1 + 3),
        ] {
            let whole = report(regions, stacks);
            let (mut parts, mut number) = (Parts::default(), 0);
            let mut each = |json: String| {
                number += 1;
                assert!(json.matches("\"start\"").count() <= REGIONS);
                parts.add(json.as_bytes()).expect("a part");
            };
            whole.clone().into_parts(&mut each).expect("JSON");
            assert_eq!(number, count, "{regions:?}");
            assert_eq!(parts.into_report(), whole);
        }
    }

    #[test]
    fn a_whole_report_is_one_part() {
        let whole = report(&[5, 6], 3);
        let mut parts = Parts::default();
        parts.add(serde_json::to_string(&whole).expect("JSON").as_bytes()).expect("a report");
        assert_eq!(parts.into_report(), whole);
    }

    #[test]
    fn regions_belong_to_a_process() {
        let mut parts = Parts::default();
        parts.add(b"{\"schema\":1}").expect("a report");
        assert!(parts.add(b"{\"regions\":[{}]}").is_err());
    }
}
