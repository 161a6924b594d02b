//! The terminal: taken, drawn on, and given back in every case.

use crate::app::error::AppError;
use crate::render::top::{Theme, draw, pages};
use crate::session::SessionError;
use crate::sys::poll;
use crate::top::{Key, State};
use nix::poll::PollFlags;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use std::io;
use std::time::Duration;

/// Before anything is read: whether there is a terminal to draw on.
///
/// # Errors
/// When there is none, with what to do instead.
pub fn usable() -> Result<(), AppError> {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let why = match (super::is_screen(), dumb) {
        (false, _) => "standard input and output are not a terminal",
        (true, true) => "this terminal (TERM) cannot be drawn on",
        (true, false) => return Ok(()),
    };
    Err(AppError::Usage(format!("{why}: `vmaudit top -b` prints plain text, `-n 1` of it once")))
}

/// Dropped, the terminal is as it was; so it is after a panic.
pub struct Screen {
    terminal: DefaultTerminal,
    theme: Theme,
}

impl Screen {
    /// # Errors
    /// When the terminal cannot be put into raw mode.
    pub fn open(theme: Theme) -> Result<Screen, AppError> {
        let terminal = ratatui::try_init().map_err(failed("taking the terminal"))?;
        Ok(Screen { terminal, theme })
    }

    /// Sets the state's size, and draws it.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(&mut self, state: &mut State) -> Result<(), AppError> {
        let size = self.terminal.size().map_err(failed("reading the terminal's size"))?;
        state.settle(pages(state, size));
        let theme = self.theme;
        self.terminal.draw(|frame| draw(frame, state, theme)).map_err(failed("drawing"))?;
        Ok(())
    }

    /// Draws on an empty screen next time.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn clear(&mut self) -> Result<(), AppError> {
        self.terminal.clear().map_err(failed("clearing the screen"))
    }

    /// Stops vmaudit as Ctrl-Z does, and takes the terminal again afterwards.
    ///
    /// # Errors
    /// When the terminal is gone meanwhile.
    pub fn suspend(&mut self) -> Result<(), AppError> {
        ratatui::try_restore().map_err(failed("giving the terminal back"))?;
        // The whole group: sudo waits for it.
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(0), nix::sys::signal::Signal::SIGTSTP)
            .map_err(|errno| SessionError::System { operation: "stopping itself", source: errno.into() })?;
        enable_raw_mode().map_err(failed("taking the terminal"))?;
        execute!(io::stdout(), EnterAlternateScreen).map_err(failed("taking the terminal"))?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It may be gone (SIGHUP).
        let _ = ratatui::try_restore();
    }
}

/// What the terminal has to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TerminalState {
    Nothing,
    /// Keys, or a new size.
    Keys,
    /// The terminal is gone.
    Gone,
}

/// Without waiting.
pub fn state_of_terminal() -> TerminalState {
    if poll::events(io::stdin()).intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
        return TerminalState::Gone;
    }
    match event::poll(Duration::ZERO) {
        Ok(true) => TerminalState::Keys,
        Ok(false) => TerminalState::Nothing,
        Err(_) => TerminalState::Gone,
    }
}

/// The keys that were pressed; None when the terminal is gone. A new size counts as no key.
pub fn keys() -> Option<Vec<Key>> {
    let mut keys = Vec::new();
    while event::poll(Duration::ZERO).ok()? {
        if let Event::Key(key) = event::read().ok()? {
            keys.extend(key_of(key));
        }
    }
    Some(keys)
}

fn key_of(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        KeyCode::Char(c) if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Control(c.to_ascii_lowercase())
        }
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Tab => Key::Tab,
        _ => return None,
    })
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| SessionError::System { operation, source }.into()
}
