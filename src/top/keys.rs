//! Keys, and what they do.

use super::state::{Pane, State, View};
use crate::report::model::Region;
use std::rc::Rc;

/// A key, whatever terminal it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Tab,
    Char(char),
    Control(char),
}

/// What is left to do for the owner of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Draw again.
    Draw,
    /// Read again, and draw: what is shown now was not read yet.
    Read,
    Quit,
    /// As Ctrl-Z does.
    Suspend,
    /// Draw everything, whatever was on the screen.
    Redraw,
}

/// Snapshots are taken at most and at least this often.
const INTERVALS_MS: [u64; 8] = [250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

impl State {
    /// Does what a key means.
    pub fn key(&mut self, key: Key) -> Action {
        match key {
            Key::Control('c') => return Action::Quit,
            Key::Control('z') => return Action::Suspend,
            Key::Control('l') => return Action::Redraw,
            _ => {}
        }
        if self.typing {
            return self.type_filter(key);
        }
        if self.help {
            // Whatever it is, it ends the help; q does not end more than that.
            self.help = false;
            return Action::Draw;
        }
        match key {
            Key::Char('q') => return Action::Quit,
            Key::Char('h' | '?') => self.help = true,
            Key::Char(' ') => {
                self.paused = !self.paused;
                return if self.paused { Action::Draw } else { Action::Read };
            }
            Key::Char('s' | '>') => self.sort = self.sort.next(),
            Key::Char('<') => self.sort = self.sort.previous(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('/') if *self.view() == View::List => self.typing = true,
            Key::Char('+') => self.change_interval(|at, now| at > now),
            Key::Char('-') => self.change_interval(|at, now| at < now),
            Key::Tab => self.next_pane(),
            Key::Enter | Key::Right => return self.enter(),
            Key::Escape | Key::Backspace | Key::Left => return self.back(key),
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::PageUp => self.step(-self.page()),
            Key::PageDown => self.step(self.page()),
            Key::Home | Key::Char('g') => self.step(isize::MIN / 2),
            Key::End | Key::Char('G') => self.step(isize::MAX / 2),
            _ => {}
        }
        self.settle(self.pages);
        Action::Draw
    }

    fn type_filter(&mut self, key: Key) -> Action {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) if !c.is_control() => self.filter.push(c),
            Key::Up | Key::Down | Key::PageUp | Key::PageDown => {
                self.typing = false;
                return self.key(key);
            }
            _ => {}
        }
        self.settle(self.pages);
        Action::Draw
    }

    fn change_interval(&mut self, beyond: fn(u64, u64) -> bool) {
        let now = self.interval_ms;
        let nearest = INTERVALS_MS.into_iter().filter(|&at| beyond(at, now));
        self.interval_ms = nearest.min_by_key(|at| at.abs_diff(now)).unwrap_or(now);
    }

    fn next_pane(&mut self) {
        let traced = self.tracing.is_some();
        self.pane = match (self.view(), self.pane) {
            (View::List | View::Process, Pane::Table) if traced => Pane::Calls,
            (View::Category(_), Pane::Table) => Pane::Findings,
            (View::Category(_), Pane::Findings) if traced => Pane::Calls,
            _ => Pane::Table,
        };
    }

    fn enter(&mut self) -> Action {
        match (self.view(), self.pane) {
            (View::List, Pane::Table) => {
                let Some(&id) = self.list_keys().get(self.list.index()) else { return Action::Draw };
                self.open(id);
            }
            (View::Process, Pane::Table) => {
                let at = self.opened.as_ref().map_or(0, |opened| opened.categories.index());
                let Some(id) = self.category_keys().get(at).cloned() else { return Action::Draw };
                if let Some(opened) = &mut self.opened {
                    opened.regions = Default::default();
                    opened.shares = Default::default();
                }
                self.views.push(View::Category(id));
                self.pane = Pane::Table;
            }
            (View::List | View::Process, _) => {
                let Some(view) = self.stack_of_call() else { return Action::Draw };
                self.views.push(view);
            }
            (View::Category(_), Pane::Table) => {
                let Some(view) = self.stack_of_region() else { return Action::Draw };
                self.views.push(view);
            }
            (View::Category(_), Pane::Calls) => {
                let Some(view) = self.stack_of_share() else { return Action::Draw };
                self.views.push(view);
            }
            (View::Category(_), Pane::Findings) | (View::Stack { .. }, _) => return Action::Draw,
        }
        self.scroll = 0;
        self.settle(self.pages);
        Action::Read
    }

    fn back(&mut self, key: Key) -> Action {
        if self.views.len() > 1 {
            // From a stack back to where it was chosen.
            let keep = matches!(self.view(), View::Stack { .. });
            self.views.pop();
            if !keep {
                self.pane = Pane::Table;
            }
            self.scroll = 0;
        } else if key == Key::Escape {
            self.filter.clear();
        }
        self.settle(self.pages);
        Action::Draw
    }

    fn page(&self) -> isize {
        let rows = match (self.view(), self.pane) {
            (View::Stack { .. }, _) | (_, Pane::Findings) => self.pages.text,
            (_, Pane::Calls) => self.pages.calls,
            (_, Pane::Table) => self.pages.table,
        };
        isize::try_from(rows.saturating_sub(1).max(1)).unwrap_or(1)
    }

    fn step(&mut self, by: isize) {
        match (self.view(), self.pane) {
            (View::List, Pane::Table) => {
                let rows = self.list_keys();
                self.list.step(by, &rows);
            }
            (View::Stack { .. }, _) | (View::Category(_), Pane::Findings) => {
                self.scroll = self.scroll.saturating_add_signed(by);
            }
            (View::Process, Pane::Table) => {
                let rows = self.category_keys();
                self.with_opened(|opened| opened.categories.step(by, &rows));
            }
            (View::List | View::Process, _) => {
                let rows = self.call_keys();
                self.call.step(by, &rows);
            }
            (View::Category(_), Pane::Table) => {
                let rows = self.region_keys();
                self.with_opened(|opened| opened.regions.step(by, &rows));
            }
            (View::Category(_), Pane::Calls) => {
                let rows = self.share_keys();
                self.with_opened(|opened| opened.shares.step(by, &rows));
            }
        }
    }

    fn with_opened(&mut self, change: impl FnOnce(&mut super::Opened)) {
        if let Some(opened) = &mut self.opened {
            change(opened);
        }
    }

    fn stack_of_call(&self) -> Option<View> {
        let calls = self.shown_calls();
        let call = calls.get(self.call.index())?;
        let note = call.stack.is_none().then(|| "the stack of this call was lost, or never taken".to_owned());
        Some(View::Stack { title: call.text.clone(), note, stack: call.stack.clone() })
    }

    fn stack_of_region(&self) -> Option<View> {
        let opened = self.opened.as_ref()?;
        let regions = opened.regions_of(self.category()?);
        let region = regions.get(opened.regions.index())?;
        let stack = region.origin.as_ref().and_then(|origin| origin.stack);
        let stack = opened.details.as_ref()?.stack(stack).cloned().map(Rc::new);
        let title = format!("{}-{} {}", region.start, region.end, region.prot);
        let note = if stack.is_none() { Some(without_stack(region).to_owned()) } else { None };
        Some(View::Stack { title, note, stack })
    }

    fn stack_of_share(&self) -> Option<View> {
        let opened = self.opened.as_ref()?;
        let category = self.category()?;
        let shares = opened.shares_of(category);
        let share = shares.get(opened.shares.index())?;
        let details = opened.details.as_ref()?;
        let stack = details.stack(share.stack).cloned().map(Rc::new);
        let row = details.process.categories.iter().find(|row| row.id == category)?;
        let note = stack.is_none().then(|| "the stacks of these calls were lost".to_owned());
        Some(View::Stack { title: format!("{}, mapped since tracing began", row.name), note, stack })
    }
}

/// Why no stack is known.
fn without_stack(region: &Region) -> &'static str {
    match (&region.origin, region.without_call.as_deref()) {
        (Some(_), _) => "the call that mapped it is known, its stack was lost",
        (None, Some("kernel")) => "the kernel mapped it, when the program was executed",
        (None, Some("preexisting")) => {
            "mapped before vmaudit began: the call that requested it is not known. `vmaudit run` sees every call, \
             `vmaudit top -t` those from now on"
        }
        (None, _) => "no call is known that mapped it",
    }
}
