//! The terminal. Its state is restored at any end of the program: a return, an error, a panic, a
//! signal, or the terminal's own end.

use std::os::fd::AsFd;
use std::{io, process, thread};

use ratatui::Frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{Code, Failure, OrFail as _};

/// The terminal in its other state; dropped, it is as it was.
pub struct Terminal(ratatui::DefaultTerminal);

impl Terminal {
    /// Takes it over.
    pub fn take() -> Result<Terminal, Failure> {
        end_with_signals().or_fail(Code::Failed)?;
        end_with(io::stdin());
        // Also restores it if the process panics.
        ratatui::try_init().map(Terminal).map_err(|e| {
            restore();
            failed(io::Error::other(format!("cannot use the terminal: {e}; try --once")))
        })
    }

    /// Draws the screen.
    pub fn draw(&mut self, screen: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.0.draw(screen).map(drop).map_err(failed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that is gone needs no restoring, and there is nobody to be told.
fn restore() {
    let _ = ratatui::try_restore();
}

/// A failure of the terminal. If it is gone, the program ends here: the thread that watches it may be later.
pub fn failed(error: io::Error) -> Failure {
    if has_ended(&io::stdin(), Some(&Timespec::default())) {
        end(SIGHUP);
    }
    Failure::new(Code::Failed, error)
}

/// Signals end the program on a thread of their own, as the others may be busy for seconds.
fn end_with_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end(signal);
        }
    });
    Ok(())
}

/// So does the end of the terminal. Its user may have gone without a SIGHUP, if it is not the
/// process's controlling one, and crossterm 0.29 then reads it again and again for ever.
fn end_with(terminal: impl AsFd + Send + 'static) {
    thread::spawn(move || {
        while !has_ended(&terminal, None) {}
        end(SIGHUP);
    });
}

/// Waits for so long.
fn has_ended(terminal: &impl AsFd, patience: Option<&Timespec>) -> bool {
    // Without any flag, only its end is told.
    let mut ended = [PollFd::new(terminal, PollFlags::empty())];
    poll(&mut ended, patience).is_ok_and(|ended| ended > 0)
}

fn end(signal: i32) -> ! {
    restore();
    process::exit(128 + signal)
}
