//! Clocks and the timer.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use lockify_core::Time;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

const SECOND: u64 = 1_000_000_000;

fn read(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * SECOND + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC`, for everything but leases.
pub(crate) fn monotonic() -> Time {
    read(ClockId::Monotonic)
}

/// `CLOCK_BOOTTIME`, for leases: the others' clocks go on while this machine is suspended.
pub(crate) fn boottime() -> Time {
    read(ClockId::Boottime)
}

/// Nanoseconds since 1970, for people: nothing is decided by it.
pub(crate) fn wall() -> u64 {
    let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    t.as_secs() * SECOND + u64::from(t.subsec_nanos())
}

/// Tells the boots of this machine from each other.
pub(crate) fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    xxhash_rust::xxh3::xxh3_64(&id)
}

/// One timer with the kernel's full resolution (an event queue's own time-outs are rounded to
/// milliseconds). A timerfd is not subject to the thread's timer slack.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    /// When it will fire, if it has not yet.
    armed: Option<Time>,
}

impl Timer {
    pub(crate) fn new(registry: &Registry, token: Token) -> std::io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Timer { fd, armed: None })
    }

    /// Makes sure that it fires at `at` or earlier. Firing too early costs a turn of the loop,
    /// setting it costs a system call: so it is never set later.
    pub(crate) fn arm(&mut self, at: Time) -> std::io::Result<()> {
        if self.armed.is_some_and(|t| t <= at) {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = at.max(1);
        let value = Timespec { tv_sec: (at / SECOND) as i64, tv_nsec: (at % SECOND) as i64 };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed = Some(at);
        Ok(())
    }

    /// It has fired. Setting it anew makes it unreadable, so it need not be read.
    pub(crate) fn fired(&mut self) {
        self.armed = None;
    }
}
