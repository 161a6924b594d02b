//! What the user sees, advanced by frames and keys.

use super::cursor::Cursor;
use super::details::{Details, Opened};
use super::sample::{Call, Figures, Group, ProcessId, ProcessSample, Sample, Swap, Tracing};
use super::sort::{SortBy, SortKeys};
use super::track::{Mostly, Track};
use crate::report::model::Stack;
use std::collections::HashMap;
use std::rc::Rc;

/// What top was started with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// The machine's or the container's name; empty for the processes of -p.
    pub title: String,
    pub interval_ms: u64,
    pub sort: SortBy,
    /// Open the only process at once.
    pub single: bool,
}

/// A page of the screen; the last one of [`State::views`] is shown.
#[derive(Clone, PartialEq, Debug)]
pub enum View {
    /// All processes.
    List,
    /// The process that is open: its categories.
    Process,
    /// A category of it, by its id: regions and findings.
    Category(String),
    /// A stack, frame by frame.
    Stack { title: String, note: Option<String>, stack: Option<Rc<Stack>> },
}

/// The part of a view that keys go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pane {
    /// Categories; regions.
    #[default]
    Table,
    /// The newest reservations; what stacks have mapped.
    Calls,
    /// Why, and what can be done.
    Findings,
}

/// Rows that there is place for, as the drawing side has laid them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pages {
    /// Of the table of the view that is shown.
    pub table: usize,
    pub calls: usize,
    /// There is a column for what processes mostly are.
    pub mostly: bool,
    /// Of text that scrolls: the place, and all of it.
    pub text: usize,
    pub text_rows: usize,
}

#[derive(Clone, PartialEq, Debug)]
pub struct State {
    pub settings: Settings,
    tracks: HashMap<ProcessId, Track>,
    pub views: Vec<View>,
    pub pane: Pane,
    pub list: Cursor<ProcessId>,
    pub opened: Option<Opened>,
    pub calls: Vec<Call>,
    pub call: Cursor<u64>,
    /// First row of text that is shown.
    pub scroll: usize,
    pub sort: SortBy,
    pub reversed: bool,
    pub filter: String,
    /// Keys go to the filter.
    pub typing: bool,
    pub paused: bool,
    pub help: bool,
    pub interval_ms: u64,
    pub group: Option<Group>,
    pub tracing: Option<Tracing>,
    /// A message, as on standard error.
    pub note: Option<String>,
    pub swap: Swap,
    /// The newest frame: when, and how long it took.
    pub time_ns: u64,
    pub took_ns: u64,
    pub frames: u64,
    pub(super) pages: Pages,
    /// The only process was opened; not again when the user has left it.
    opened_single: bool,
}

impl State {
    pub fn new(settings: Settings) -> State {
        State {
            tracks: HashMap::new(),
            views: vec![View::List],
            pane: Pane::default(),
            list: Cursor::default(),
            opened: None,
            calls: Vec::new(),
            call: Cursor::default(),
            scroll: 0,
            sort: settings.sort,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            interval_ms: settings.interval_ms,
            group: None,
            tracing: None,
            note: None,
            swap: Swap::None,
            time_ns: 0,
            took_ns: 0,
            frames: 0,
            pages: Pages::default(),
            opened_single: false,
            settings,
        }
    }

    /// Adds a frame, unless the user has stopped them.
    pub fn sample(&mut self, sample: Sample) {
        if self.paused {
            return;
        }
        let Sample { time_ns, took_ns, processes, group, swap } = sample;
        (self.time_ns, self.took_ns, self.group, self.swap) = (time_ns, took_ns, group, swap);
        self.frames += 1;
        let mut found: HashMap<ProcessId, ProcessSample> =
            processes.into_iter().map(|process| (process.id, process)).collect();
        self.tracks.retain(|id, track| match found.remove(id) {
            Some(process) => {
                track.update(process, time_ns);
                true
            }
            None => track.miss(),
        });
        for (id, process) in found {
            self.tracks.insert(id, Track::new(process, time_ns));
        }
        if self.settings.single && !self.opened_single {
            let only = self.visible().first().map(|track| track.newest.id);
            if let Some(only) = only {
                self.opened_single = true;
                self.open(only);
            }
        }
        self.settle(self.pages);
    }

    /// Adds a snapshot of a process. Older than what is open, it is dropped.
    pub fn details(&mut self, id: ProcessId, details: Details) {
        if let Some(row) = details.process.categories.iter().max_by_key(|row| row.virt) {
            let known = super::track::Known::Category(row.name.clone());
            self.mostly(id, Mostly { known, at_ns: details.at_ns });
        }
        if let Some(opened) = self.opened.as_mut().filter(|opened| opened.id == id) {
            opened.update(details);
        }
        self.settle(self.pages);
    }

    /// Why the open process could not be examined.
    pub fn failed(&mut self, id: ProcessId, error: String) {
        if let Some(opened) = self.opened.as_mut().filter(|opened| opened.id == id) {
            opened.error = Some(error);
        }
    }

    /// What a process of the list mostly is.
    pub fn mostly(&mut self, id: ProcessId, mostly: Mostly) {
        if let Some(track) = self.tracks.get_mut(&id) {
            track.mostly = Some(mostly);
        }
    }

    /// The newest reservations, newest first.
    pub fn newest_calls(&mut self, calls: Vec<Call>, tracing: Tracing) {
        if self.paused {
            return;
        }
        self.calls = calls;
        self.tracing = Some(tracing);
        self.settle(self.pages);
    }

    pub fn view(&self) -> &View {
        self.views.last().unwrap_or(&View::List)
    }

    pub fn track(&self, id: ProcessId) -> Option<&Track> {
        self.tracks.get(&id)
    }

    /// The processes that the filter lets through, in the order in which they are shown.
    pub fn visible(&self) -> Vec<&Track> {
        let pattern = self.filter.to_lowercase();
        let passes = |track: &&Track| {
            pattern.is_empty()
                || track.newest.name.to_lowercase().contains(&pattern)
                || track.newest.id.pid.to_string() == pattern
        };
        let mut rows: Vec<&Track> = self.tracks.values().filter(passes).collect();
        rows.sort_by(|a, b| {
            let order = self.sort.order(&key(a), &key(b));
            let order = if self.reversed { order.reverse() } else { order };
            order.then_with(|| a.newest.id.cmp(&b.newest.id))
        });
        rows
    }

    /// Numbers and sums of those that live: processes, VIRT, RSS and swap.
    pub fn total(&self) -> (usize, Figures) {
        let living = self.tracks.values().filter(|track| !track.has_ended());
        living.fold((0, Figures::default()), |(count, sum), track| {
            let own = track.newest.figures;
            let figures = Figures {
                virt: sum.virt.saturating_add(own.virt),
                rss: sum.rss.saturating_add(own.rss),
                swap: sum.swap.saturating_add(own.swap),
                huge: sum.huge.saturating_add(own.huge),
            };
            (count + 1, figures)
        })
    }

    /// The open process, if what is shown is of it.
    pub fn inside(&self) -> Option<&Opened> {
        self.opened.as_ref().filter(|_| self.views.contains(&View::Process))
    }

    /// The process that is to be examined for what is shown.
    pub fn opened_process(&self) -> Option<ProcessId> {
        let opened = self.inside()?;
        let ended = self.tracks.get(&opened.id).is_none_or(Track::has_ended);
        if ended { None } else { Some(opened.id) }
    }

    /// The processes whose rows are on the screen, for what they mostly are.
    pub fn on_screen(&self) -> Vec<&Track> {
        let rows = self.visible().into_iter().skip(self.list.offset()).take(self.pages.table);
        rows.filter(|track| !track.has_ended()).collect()
    }

    pub fn shows_mostly(&self) -> bool {
        self.pages.mostly
    }

    /// The newest reservations that are shown: of the open process, where one is.
    pub fn shown_calls(&self) -> Vec<&Call> {
        let pid = self.inside().map(|opened| opened.id.pid);
        self.calls.iter().filter(|call| pid.is_none_or(|pid| call.pid == pid)).collect()
    }

    /// To be called whenever the number of visible rows has changed.
    pub fn settle(&mut self, pages: Pages) {
        self.pages = pages;
        let rows = self.list_keys();
        self.list.settle(&rows, pages.table);
        match self.view() {
            View::List => {}
            View::Process => {
                let rows = self.category_keys();
                if let Some(opened) = &mut self.opened {
                    opened.categories.settle(&rows, pages.table);
                }
            }
            View::Category(_) => {
                let (regions, shares) = (self.region_keys(), self.share_keys());
                if let Some(opened) = &mut self.opened {
                    opened.regions.settle(&regions, pages.table);
                    opened.shares.settle(&shares, pages.calls);
                }
            }
            View::Stack { .. } => {}
        }
        let calls = self.call_keys();
        self.call.settle(&calls, pages.calls);
        self.scroll = self.scroll.min(pages.text_rows.saturating_sub(pages.text));
    }

    pub(super) fn open(&mut self, id: ProcessId) {
        if self.opened.as_ref().is_none_or(|opened| opened.id != id) {
            self.opened = Some(Opened::new(id));
        }
        self.views.push(View::Process);
        self.pane = Pane::Table;
    }

    pub(super) fn list_keys(&self) -> Vec<ProcessId> {
        self.visible().iter().map(|track| track.newest.id).collect()
    }

    /// Rows of the table of categories.
    pub fn category_count(&self) -> usize {
        let details = self.opened.as_ref().and_then(|opened| opened.details.as_ref());
        details.map_or(0, |details| details.process.categories.len())
    }

    pub(super) fn category_keys(&self) -> Vec<String> {
        let lines = self.opened.iter().flat_map(|opened| opened.lines((self.sort, self.reversed)));
        lines.map(|line| line.row.id.clone()).collect()
    }

    /// The category that is shown.
    pub fn category(&self) -> Option<&str> {
        self.views.iter().rev().find_map(|view| match view {
            View::Category(id) => Some(id.as_str()),
            _ => None,
        })
    }

    pub(super) fn region_keys(&self) -> Vec<String> {
        let (Some(opened), Some(category)) = (&self.opened, self.category()) else { return Vec::new() };
        opened.regions_of(category).iter().map(|region| region.start.clone()).collect()
    }

    pub(super) fn share_keys(&self) -> Vec<Option<u64>> {
        let (Some(opened), Some(category)) = (&self.opened, self.category()) else { return Vec::new() };
        opened.shares_of(category).iter().map(|share| share.stack).collect()
    }

    pub(super) fn call_keys(&self) -> Vec<u64> {
        self.shown_calls().iter().map(|call| call.number).collect()
    }
}

fn key(track: &Track) -> SortKeys<'_> {
    let newest = &track.newest;
    let Figures { virt, rss, .. } = newest.figures;
    SortKeys { name: &newest.name, virt, rss, unused: newest.figures.unused(), growth: track.growth() }
}
