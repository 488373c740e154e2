//! The signals of this program's caller, as the command has to find them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise};

/// Signals that the front reads: those that end the command, and those that are passed on.
const READ: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// Bit N-1 is set if signal N was ignored when this program started.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Runs before Rust's runtime, which ignores SIGPIPE and forgets the former action.
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code)]
static REMEMBER: extern "C" fn() = remember;

#[allow(unsafe_code)]
extern "C" fn remember() {
    for number in 1..=64 {
        let mut found = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: nothing is set, and `found` has room for the present action; a failure leaves it
        // zeroed.
        let handler = unsafe {
            libc::sigaction(number, std::ptr::null(), found.as_mut_ptr());
            found.assume_init().sa_sigaction
        };
        if handler == libc::SIG_IGN {
            IGNORED.fetch_or(1 << (number - 1), Ordering::Relaxed);
        }
    }
}

fn ignored(signal: Signal) -> bool {
    IGNORED.load(Ordering::Relaxed) & (1 << (signal as i32 - 1)) != 0
}

/// The caller's signals.
pub struct Caller {
    mask: SigSet,
}

impl Caller {
    /// Blocks the signals that are read from now on; those that the caller ignores stay ignored.
    pub fn take() -> nix::Result<Caller> {
        let mask = read().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        if ignored(Signal::SIGCHLD) {
            // Else the kernel drops the exit codes of children.
            handle(Signal::SIGCHLD, SigHandler::SigDfl)?;
        }
        Ok(Caller { mask })
    }

    /// Makes this process's signals the caller's again.
    pub fn restore(&self) -> nix::Result<()> {
        for signal in [Signal::SIGPIPE, Signal::SIGCHLD] {
            let handler = if ignored(signal) { SigHandler::SigIgn } else { SigHandler::SigDfl };
            handle(signal, handler)?;
        }
        self.mask.thread_set_mask()
    }
}

/// The signals that the front reads.
pub fn read() -> SigSet {
    READ.into_iter().filter(|signal| !ignored(*signal)).collect()
}

/// Blocks every signal that can be blocked.
pub fn block_all() -> nix::Result<()> {
    SigSet::all().thread_set_mask()
}

/// Ends this process as `signal` would have, had nobody read it.
pub fn die_of(signal: Signal) -> ExitCode {
    let mut unblocked = SigSet::empty();
    unblocked.add(signal);
    // The first process of a container does not die of its own signals.
    let _ = raise(signal).and_then(|()| unblocked.thread_unblock());
    ExitCode::from(128 + signal as u8)
}

#[allow(unsafe_code)]
fn handle(signal: Signal, handler: SigHandler) -> nix::Result<()> {
    // SAFETY: the handlers are the kernel's own, no function is called.
    unsafe { nix::sys::signal::signal(signal, handler) }.map(drop)
}
