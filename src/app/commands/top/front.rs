//! The loop: read a frame, draw it, do what keys say, until the user quits.

use super::inside;
use super::list::ProcessList;
use super::screen::{Screen, keys};
use crate::app::error::AppError;
use crate::app::output;
use crate::render::Color;
use crate::render::top::{Theme, batch};
use crate::report::Report;
use crate::session::say;
use crate::top::{Action, Call, Details, Known, Mostly, ProcessId, Settings, State, Tracing};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How old what a process mostly is may become.
const MOSTLY_NS: u64 = 20_000_000_000;
/// The part of the time, one in so many, that may be spent on snapshots of the rows on the screen; and of the
/// process that is open.
const ROWS_PART: u32 = 10;
const SNAPSHOT_SHARE: u32 = 4;
/// For how many frames a message is shown.
const NOTE_FRAMES: u64 = 3;

/// Why waiting ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The time is over.
    Time,
    /// Keys may have been pressed, or the terminal has another size.
    Keys,
    /// A signal stops vmaudit.
    Stop,
}

/// The newest reservations, newest first, and what tracing has come to.
pub type Traced = (Vec<Call>, Tracing);

/// How processes are examined: by snapshots, or with a trace.
pub trait Source {
    /// Until `until`, or until standard input is readable (with `keys`), or a signal to stop arrives.
    ///
    /// # Errors
    /// When tracing fails.
    fn wait(&mut self, until: Instant, keys: bool) -> Result<Woken, AppError>;

    /// Takes a snapshot of a process; the report has it as the first and only one.
    ///
    /// # Errors
    /// In words.
    fn snapshot(&mut self, id: ProcessId) -> Result<Report, String>;

    /// None without a trace.
    fn newest(&mut self) -> Option<Traced>;
}

pub struct Front {
    list: ProcessList,
    state: State,
    iterations: Option<u64>,
    batch: bool,
    theme: Theme,
    /// When the open process may be examined again.
    next_snapshot: Option<(ProcessId, Instant)>,
    /// The newest reservation that was printed.
    printed: u64,
    over: bool,
    /// How many messages there were, and at which frame the newest came.
    noted: (usize, u64),
}

impl Front {
    pub fn new(
        list: ProcessList,
        settings: Settings,
        (iterations, batch, color): (Option<u64>, bool, Color),
    ) -> Front {
        Front {
            list,
            state: State::new(settings),
            iterations,
            batch,
            theme: Theme::new(color),
            next_snapshot: None,
            printed: 0,
            over: false,
            noted: (0, 0),
        }
    }

    /// Since vmaudit began.
    pub fn now_ns(&self) -> u64 {
        self.list.now_ns()
    }

    /// Until the user quits, or all snapshots are done.
    ///
    /// # Errors
    /// When the terminal is gone, or reading fails altogether.
    pub fn run(mut self, source: &mut dyn Source) -> Result<u8, AppError> {
        if self.batch { self.print_frames(source) } else { self.show(source) }
    }

    fn print_frames(&mut self, source: &mut dyn Source) -> Result<u8, AppError> {
        let mut next = Instant::now();
        loop {
            self.read(source)?;
            self.snapshot_rows(source, None)?;
            let number = self.state.frames;
            let fresh: Vec<&Call> =
                self.state.shown_calls().into_iter().filter(|call| call.number > self.printed).collect();
            let text = batch(&self.state, &fresh);
            self.printed = fresh.iter().map(|call| call.number).max().unwrap_or(self.printed);
            let blank = if number > 1 { "\n" } else { "" };
            output::print(format!("{blank}{text}").as_bytes())?;
            if self.over || self.iterations.is_some_and(|most| number >= most) {
                return Ok(0);
            }
            next = self.following(next);
            while Instant::now() < next {
                if source.wait(next, false)? == Woken::Stop {
                    return Ok(0);
                }
            }
        }
    }

    fn show(&mut self, source: &mut dyn Source) -> Result<u8, AppError> {
        say::hold();
        let mut screen = Screen::open(self.theme)?;
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                if !self.state.paused {
                    if self.iterations.is_some_and(|most| self.state.frames >= most) {
                        return Ok(0);
                    }
                    self.read(source)?;
                    screen.draw(&mut self.state)?;
                    self.snapshot_rows(source, Some(&mut screen))?;
                }
                next = self.following(next);
            }
            screen.draw(&mut self.state)?;
            match source.wait(next, true)? {
                Woken::Stop => return Ok(0),
                Woken::Time => continue,
                Woken::Keys => {}
            }
            let Some(keys) = keys() else { return Ok(0) };
            for key in keys {
                let interval = self.state.interval_ms;
                match self.state.key(key) {
                    Action::Quit => return Ok(0),
                    Action::Suspend => screen.suspend()?,
                    Action::Redraw => screen.clear()?,
                    Action::Read => {
                        self.snapshot(source);
                        if !self.state.paused && self.state.views.len() == 1 {
                            next = Instant::now();
                        }
                    }
                    Action::Draw => {}
                }
                if self.state.interval_ms != interval {
                    next = next.min(Instant::now() + Duration::from_millis(self.state.interval_ms));
                }
            }
        }
    }

    /// The time of the frame after the one that was due at `last`, not piling up.
    fn following(&self, last: Instant) -> Instant {
        let step = Duration::from_millis(self.state.interval_ms.max(1));
        let now = Instant::now();
        let planned = last + step;
        if planned > now { planned } else { now + step / 2 }
    }

    fn read(&mut self, source: &mut dyn Source) -> Result<(), AppError> {
        let sample = self.list.read()?;
        self.over = self.list.is_over(&sample);
        self.state.sample(sample);
        self.show_note();
        if let Some((calls, tracing)) = source.newest() {
            self.state.newest_calls(calls, tracing);
        }
        self.snapshot(source);
        Ok(())
    }

    /// What was said meanwhile is shown for a while.
    fn show_note(&mut self) {
        let (count, text) = say::newest_held().unwrap_or_default();
        if count > self.noted.0 {
            self.noted = (count, self.state.frames);
            self.state.note = Some(text);
        } else if self.state.frames > self.noted.1 + NOTE_FRAMES {
            self.state.note = None;
        }
    }

    /// Takes a snapshot of the open process, unless that would take too much of the time.
    fn snapshot(&mut self, source: &mut dyn Source) {
        let Some(id) = self.state.opened_process() else { return };
        let begun = Instant::now();
        let known = self.state.opened.as_ref().is_some_and(|opened| opened.details.is_some());
        let soon = self.next_snapshot.is_some_and(|(of, after)| of == id && begun < after);
        if self.state.paused && known || soon {
            return;
        }
        let at_ns = self.list.now_ns();
        match source.snapshot(id) {
            Ok(mut report) => {
                let took_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                if report.processes.is_empty() {
                    return;
                }
                let process = Rc::new(report.processes.swap_remove(0));
                let stacks = Rc::new(report.stacks);
                self.state.details(id, Details { process, stacks, at_ns, took_ns });
            }
            Err(error) => self.state.failed(id, error),
        }
        self.next_snapshot = Some((id, begun + begun.elapsed() * SNAPSHOT_SHARE));
    }

    /// Finds out what the processes on the screen mostly are, oldest knowledge first, as long as that
    /// takes a small part of the time and no key is pressed.
    fn snapshot_rows(
        &mut self,
        source: &mut dyn Source,
        mut screen: Option<&mut Screen>,
    ) -> Result<(), AppError> {
        if self.state.views.len() > 1 || screen.is_some() && !self.state.shows_mostly() {
            return Ok(());
        }
        let begun = Instant::now();
        let budget = Duration::from_millis(self.state.interval_ms) / ROWS_PART;
        let now_ns = self.list.now_ns();
        let rows = match screen {
            Some(_) => self.state.on_screen(),
            None => self.state.visible(),
        };
        let age =
            |mostly: &Option<Mostly>| mostly.as_ref().map_or(u64::MAX, |m| now_ns.saturating_sub(m.at_ns));
        let old = rows.into_iter().map(|track| (age(&track.mostly), track.newest.id));
        let mut old: Vec<(u64, ProcessId)> = old.filter(|(age, _)| *age > MOSTLY_NS).collect();
        old.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
        for (_, id) in old {
            let known: Known = inside::mostly(id);
            self.state.mostly(id, Mostly { known, at_ns: self.list.now_ns() });
            let pressed = screen.is_some() && source.wait(Instant::now(), true)? != Woken::Time;
            if begun.elapsed() > budget || pressed {
                break;
            }
        }
        if let Some(screen) = &mut screen {
            screen.draw(&mut self.state)?;
        }
        Ok(())
    }
}
