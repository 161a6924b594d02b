//! A report in parts, none of which is large, and its stacks one by one: a recording keeps them as rows, and stacks
//! that several reports have once.
//!
//! The first part is the report without processes. Then follow objects with one process in `processes`, and with
//! more `rows` or `sites` of the process before.

use super::model::{HeapProcess, HeapReport, HeapRow, HeapSite};
use crate::report::model::{Frame, Stack};
use crate::report::{StackReader, StackTexts, classify_all};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use serde_json::Error;

/// Rows or sites in one part.
const ROWS: usize = 1024;

/// A part but the first one.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct More {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<HeapProcess>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rows: Vec<HeapRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sites: Vec<HeapSite>,
}

/// A report as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeapJson {
    pub parts: Vec<String>,
    pub stacks: Vec<String>,
}

impl HeapReport {
    /// # Errors
    /// None in practice: the model holds nothing that JSON cannot say.
    pub fn to_parts(&self) -> Result<HeapJson, Error> {
        let head = HeapReport { processes: Vec::new(), stacks: Vec::new(), ..self.clone() };
        let mut parts = vec![serde_json::to_string(&head)?];
        for process in &self.processes {
            let (rows, sites) = (process.rows.chunks(ROWS), process.sites.chunks(ROWS));
            let alone = HeapProcess { rows: Vec::new(), sites: Vec::new(), ..process.clone() };
            parts.push(serde_json::to_string(&More { processes: vec![alone], ..More::default() })?);
            for rows in rows {
                parts.push(serde_json::to_string(&More { rows: rows.to_vec(), ..More::default() })?);
            }
            for sites in sites {
                parts.push(serde_json::to_string(&More { sites: sites.to_vec(), ..More::default() })?);
            }
        }
        let write = (serde_json::to_string::<Frame>, serde_json::to_string::<Stack>);
        let mut texts = StackTexts::new(write, ["", ",", ""].map(str::to_owned));
        let text = |stack| {
            let mut text = String::new();
            texts.add(stack, &mut text).map(|()| text)
        };
        let stacks = self.stacks.iter().map(text).collect::<Result<_, _>>()?;
        Ok(HeapJson { parts, stacks })
    }

    /// # Errors
    /// When it is no such JSON.
    pub fn from_json(json: &[u8]) -> Result<HeapReport, Error> {
        let mut report: HeapReport = serde_json::from_slice(json)?;
        classify_all(&mut report.stacks);
        Ok(report)
    }
}

/// The parts and stacks that were read so far.
#[derive(Default)]
pub struct HeapParts {
    report: Option<HeapReport>,
    stacks: Vec<Stack>,
    reader: StackReader,
}

impl HeapParts {
    /// The next part.
    ///
    /// # Errors
    /// When it is no such JSON, or has rows of no process.
    pub fn part(&mut self, json: &[u8]) -> Result<(), Error> {
        // A list without values would do for a structure whose fields may all be absent.
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(Error::custom("not an object"));
        }
        let Some(report) = &mut self.report else {
            self.report = Some(serde_json::from_slice(json)?);
            return Ok(());
        };
        let More { mut processes, mut rows, mut sites } = serde_json::from_slice(json)?;
        report.processes.append(&mut processes);
        if !rows.is_empty() || !sites.is_empty() {
            let last = report.processes.last_mut().ok_or_else(|| Error::custom("rows of no process"))?;
            last.rows.append(&mut rows);
            last.sites.append(&mut sites);
        }
        Ok(())
    }

    /// The next stack.
    ///
    /// # Errors
    /// When it is no such JSON.
    pub fn stack(&mut self, json: &[u8]) -> Result<(), Error> {
        self.stacks.push(self.reader.stack(json)?);
        Ok(())
    }

    /// All of it.
    pub fn into_report(self) -> HeapReport {
        HeapReport { stacks: self.stacks, ..self.report.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &[usize], stacks: usize) -> HeapReport {
        let process = |(pid, &rows): (usize, &usize)| HeapProcess {
            pid: pid as i32 + 1,
            rows: (0..rows as u64)
                .map(|growth| HeapRow { growth: growth as i64, ..HeapRow::default() })
                .collect(),
            sites: (0..2 * rows as u64).map(|frees| HeapSite { frees, ..HeapSite::default() }).collect(),
            ..HeapProcess::default()
        };
        HeapReport {
            schema: 1,
            processes: rows.iter().enumerate().map(process).collect(),
            stacks: (0..stacks).map(|_| Stack::new(Vec::new(), "complete")).collect(),
            ..HeapReport::default()
        }
    }

    #[test]
    fn parts_make_the_report_and_none_is_large() {
        for (rows, stacks, count) in
            [(&[][..], 0, 1), (&[3], 1, 4), (&[0, 0], 2, 3), (&[ROWS, ROWS + 1, 0], 1, 1 + 4 + 6 + 1)]
        {
            let whole = report(rows, stacks);
            let json = whole.to_parts().expect("JSON");
            assert_eq!(json.parts.len(), count, "{rows:?}");
            assert!(json.parts.iter().all(|part| part.matches("\"growth\"").count() <= ROWS));
            let mut parts = HeapParts::default();
            json.parts.iter().for_each(|part| parts.part(part.as_bytes()).expect("a part"));
            json.stacks.iter().for_each(|stack| parts.stack(stack.as_bytes()).expect("a stack"));
            assert_eq!(parts.into_report(), whole);
        }
    }

    #[test]
    fn rows_belong_to_a_process() {
        let mut parts = HeapParts::default();
        parts.part(b"{\"schema\": 1}").expect("a report");
        assert!(parts.part(b"{\"rows\": [{}]}").is_err());
        assert!(parts.part(b"[]").is_err() && parts.part(b"{\"sites\": 3}").is_err());
    }
}
