//! Lines for an operator, written by a thread of their own.
//!
//! A log's reader may be slow, stopped or gone, and its disk may be full. The working threads hand over their lines
//! and continue. Lines that nobody reads in time are left out, and their number is reported.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may wait to be written.
const ROOM: usize = 1 << 20;

/// How much a line matters when not all can be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// One of very many, as a request's is: there is always room left for the others.
    Detail,
    /// One that somebody should see.
    Notice,
}

/// How a line says that so many are missing, with its end.
pub type Apology = fn(u64) -> Vec<u8>;

/// Where lines are said; a copy says them in the same place.
#[derive(Clone)]
pub struct Lines(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// All is written.
    emptied: Condvar,
    apology: Apology,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines for which there was no room.
    left_out: u64,
    /// Lines that could not be written. Told with the next one: only that shows whether anything can be written again.
    lost: u64,
    writing: bool,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// To standard error. The thread ends with the process.
    ///
    /// # Errors
    /// The system gives no thread, or standard error is closed.
    pub fn to_stderr(apology: Apology) -> io::Result<Lines> {
        // Its own descriptor: a writer that waits must not have the lock that `eprintln` takes.
        let to = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        Lines::start(to, apology)
    }

    /// To anything that can be written.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(to: impl Write + Send + 'static, apology: Apology) -> io::Result<Lines> {
        let (queue, filled, emptied) = Default::default();
        let shared = Arc::new(Shared { queue, filled, emptied, apology });
        let lines = Lines(shared.clone());
        let thread = std::thread::Builder::new().name("lockify-log".into());
        thread.spawn(move || shared.write_to(to))?;
        Ok(lines)
    }

    /// Says a line, which brings its end along. Never waits.
    pub fn say(&self, line: Vec<u8>, weight: Weight) {
        let mut queue = self.0.queue();
        let room = if weight == Weight::Detail { ROOM / 2 } else { ROOM };
        if queue.bytes + line.len() > room {
            queue.left_out += 1;
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        drop(queue);
        self.0.filled.notify_one();
    }

    /// Waits until everything is written that was said before, but no longer than this; whether it is.
    pub fn flush(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut queue = self.0.queue();
        while queue.is_busy() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.emptied.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.lost == 0
    }
}

impl Queue {
    fn is_busy(&self) -> bool {
        self.writing || self.left_out > 0 || !self.lines.is_empty()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut to: impl Write) {
        loop {
            let (lines, missing) = self.take();
            let mut lost = 0;
            for line in &lines {
                // A full disk, perhaps: it may have room again for the next one.
                lost += u64::from(to.write_all(line).is_err());
            }
            if missing > 0 && to.write_all(&(self.apology)(missing)).is_err() {
                lost += missing;
            }
            self.written(lost);
        }
    }

    /// The next lines to write, and the number of lines that are missing after them.
    fn take(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut queue = self.queue();
        while queue.lines.is_empty() && queue.left_out == 0 {
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.bytes = 0;
        queue.writing = true;
        let missing = std::mem::take(&mut queue.left_out) + std::mem::take(&mut queue.lost);
        (std::mem::take(&mut queue.lines), missing)
    }

    fn written(&self, lost: u64) {
        let mut queue = self.queue();
        queue.writing = false;
        queue.lost += lost;
        drop(queue);
        self.emptied.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn apology(n: u64) -> Vec<u8> {
        format!("({n} left out)\n").into_bytes()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer, apology).unwrap();
        // Longer than the pipe: once its first byte is there, the thread writes this line and cannot end.
        lines.say([vec![b'x'; ROOM / 2 - 1], b"\n".to_vec()].concat(), Weight::Detail);
        reader.read_exact(&mut [0]).unwrap();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        // Far more than the queue takes: this would never come back.
        (0..5000).for_each(|_| lines.say(line.clone(), Weight::Detail));
        // Details have left room for what matters.
        lines.say(b"important\n".to_vec(), Weight::Notice);
        assert!(!lines.flush(Duration::from_millis(10)), "it cannot have been written");
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut all, mut part) = (Vec::new(), [0; 4096]);
            while !all.ends_with(b"left out)\n") {
                let n = reader.read(&mut part).unwrap();
                assert!(n > 0, "the thread has ended");
                all.extend_from_slice(&part[..n]);
            }
            tell.send(String::from_utf8(all).unwrap())
        });
        let text = told.recv_timeout(LONG).expect("in vain waited for what is left out");
        assert!(lines.flush(LONG));
        let kept = ROOM / 2 / line.len();
        assert_eq!(
            text.lines().count(),
            1 + kept + 2,
            "the long line, what the queue took, and two more"
        );
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        assert_eq!(last, [&*format!("({} left out)", 5000 - kept), "important"]);
    }

    /// A disk that is full for some time.
    struct Full(Arc<Mutex<(bool, Vec<u8>)>>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            if disk.0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_has_not_taken_are_counted() {
        let disk = Arc::new(Mutex::new((true, Vec::new())));
        let lines = Lines::start(Full(disk.clone()), apology).unwrap();
        for line in ["one\n", "two\n"] {
            lines.say(line.into(), Weight::Notice);
        }
        // They are gone, and there is nothing to wait for but room.
        assert!(!lines.flush(LONG));
        disk.lock().unwrap().0 = false;
        lines.say(b"three\n".to_vec(), Weight::Notice);
        assert!(lines.flush(LONG));
        assert_eq!(disk.lock().unwrap().1, b"three\n(2 left out)\n");
    }
}
