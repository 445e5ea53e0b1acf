//! The terminal while `podmux top` uses it.

use std::io;

use ratatui::{DefaultTerminal, Frame};

/// The terminal in raw mode, with a screen of its own. Dropping it restores what was there before; a panic restores
/// it before its message is printed.
#[derive(Debug)]
pub struct Guard(DefaultTerminal);

impl Guard {
    /// Takes the terminal of the standard output.
    ///
    /// # Errors
    /// If it cannot be used. It is restored then.
    pub fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| drop(ratatui::try_restore()))
    }

    /// Draws a frame, and writes what has changed since the last one.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(frame).map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}
