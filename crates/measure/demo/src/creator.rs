//! The measured loop: lock as GFS2 does, create, lock again.
//!
//! For each entry: the parent directory's glock exclusive (kept until another node wants it), a
//! number for the new inode, its inode glock exclusive and its iopen glock shared, both with
//! NOTIFY, then the entry itself in the shared folder, with its content, permissions and times.

use std::fs::File;

use lockify_core::{LockFlags, Mode};

use crate::clock::now;
use crate::glock::{Allocator, Glock, ROOT};
use crate::image::{Contents, Image, ImageError};
use crate::locks::{Held, LockError, Locks};
use crate::tree::Entry;
use crate::wire::{Created, Portion, Prepare};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A lock call failed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The shared folder cannot be opened.
    #[error("cannot open the shared folder {path}: {error}")]
    Folder {
        /// The folder.
        path: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// An entry cannot be created.
    #[error(transparent)]
    Create(#[from] ImageError),
}

/// The entries to create.
#[derive(Debug)]
struct Job {
    image: Image,
    /// Its parent is the shared folder, and no directory that this creator has made.
    in_root: bool,
}

/// A directory's glock at this creator.
#[derive(Clone, Copy, Debug)]
struct Parent {
    held: Held,
    mode: Mode,
    /// When it was granted last, `CLOCK_MONOTONIC` in nanoseconds.
    since: u64,
}

/// One creator's part of a run.
#[derive(Debug)]
pub struct Run {
    folder: File,
    jobs: Vec<Job>,
    /// Inode glocks of the created entries, by job.
    inodes: Vec<Held>,
    iopens: Vec<Held>,
    root: Option<Parent>,
    latencies: Vec<u64>,
    lock_ns: u64,
    hold_ns: u64,
}

impl Run {
    /// Does everything that is not to be timed. A creator that has the folder for itself takes its
    /// lock here: it has just made it.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn prepare(
        p: &Prepare,
        entries: &[Entry],
        contents: &mut Contents,
        locks: &mut Locks,
    ) -> Result<Run, CreateError> {
        let folder = File::open(&p.folder)
            .map_err(|error| CreateError::Folder { path: p.folder.display().to_string(), error })?;
        let jobs = jobs(p, entries, contents)?;
        let count = jobs.len();
        // Request and grant of two locks; the parent's comings and goings; the release.
        locks.recorder.reserve(count * 16 + 64);
        let mut run = Run {
            folder,
            jobs,
            inodes: Vec::with_capacity(count),
            iopens: Vec::with_capacity(count),
            root: None,
            latencies: Vec::with_capacity(count),
            lock_ns: 0,
            hold_ns: p.hold_ns,
        };
        if p.share.1 == 1 {
            run.take_root(locks)?;
        }
        Ok(run)
    }

    /// Creates a portion; if the run is over by it, passes the final barrier.
    ///
    /// # Errors
    /// [`CreateError`].
    pub fn create(
        &mut self,
        numbers: &mut Allocator,
        portion: Portion,
        locks: &mut Locks,
    ) -> Result<Created, CreateError> {
        let began = now();
        let mut start = began;
        let mut spent = false;
        let first = self.iopens.len();
        for job in first..self.jobs.len().min(portion.pause_at as usize) {
            start = self.create_one(job, start, numbers, locks)?;
            spent = start - began > portion.budget_ns && job + 1 >= portion.min as usize;
            if spent {
                break;
            }
        }
        let over = spent || self.iopens.len() == self.jobs.len();
        if over {
            // Giving the parent up waits until every claim is settled.
            self.release_root(locks)?;
        }
        Ok(Created {
            began,
            ended: now(),
            over,
            latencies: std::mem::take(&mut self.latencies),
            lock_ns: std::mem::take(&mut self.lock_ns),
        })
    }

    /// Every lock of the run.
    pub fn into_locks(self) -> Vec<Held> {
        let root = self.root.map(|p| p.held);
        // Children before parents, as a file system would let go of them.
        root.into_iter().chain(self.inodes).chain(self.iopens).rev().collect()
    }

    /// One creation that begins at `start`; returns when it ended, which is when the next begins.
    fn create_one(
        &mut self,
        job: usize,
        start: u64,
        numbers: &mut Allocator,
        locks: &mut Locks,
    ) -> Result<u64, CreateError> {
        // A directory that this creator has made is locked by it, and nobody else asks for it.
        if self.jobs[job].in_root {
            self.take_root(locks)?;
        }
        let number = numbers.allocate();
        let inode = locks.lock(Glock::inode(number), Mode::EX, LockFlags::NOTIFY)?;
        let iopen = locks.lock(Glock::iopen(number), Mode::PR, LockFlags::NOTIFY)?;
        self.inodes.push(inode);
        self.iopens.push(iopen);
        let locked = now();
        self.jobs[job].image.create(&self.folder)?;
        let made = now();
        locks.turn()?;
        if self.root.is_some_and(|r| locks.wanted(r.held) && now() >= r.since + self.hold_ns) {
            self.release_root(locks)?;
        }
        let end = now();
        self.lock_ns += (locked - start) + (end - made);
        self.latencies.push(end - start);
        Ok(end)
    }

    fn take_root(&mut self, locks: &mut Locks) -> Result<(), CreateError> {
        match &mut self.root {
            Some(root) if root.mode == Mode::EX => {}
            Some(root) => {
                locks.convert(&mut root.held, Mode::EX)?;
                root.mode = Mode::EX;
                root.since = now();
            }
            None => {
                let held = locks.lock(Glock::inode(ROOT), Mode::EX, LockFlags::empty())?;
                self.root = Some(Parent { held, mode: Mode::EX, since: now() });
            }
        }
        Ok(())
    }

    /// GFS2 gives a directory up by a conversion to NL, which waits behind the claim barrier.
    fn release_root(&mut self, locks: &mut Locks) -> Result<(), CreateError> {
        if let Some(root) = self.root.as_mut().filter(|r| r.mode == Mode::EX) {
            locks.convert(&mut root.held, Mode::NL)?;
            root.mode = Mode::NL;
            // The waiter has it now; notices for the next hold come after its grant.
            locks.forget_wanted();
        }
        Ok(())
    }
}

/// This creator's share of the entries.
fn jobs(p: &Prepare, entries: &[Entry], contents: &mut Contents) -> Result<Vec<Job>, ImageError> {
    let (first, step) = (p.share.0 as usize, p.share.1.max(1) as usize);
    let mine = entries.iter().take(p.limit as usize).skip(first).step_by(step);
    mine.map(|e| Ok(Job { image: Image::load(e, contents)?, in_root: e.parent.is_none() }))
        .collect()
}
