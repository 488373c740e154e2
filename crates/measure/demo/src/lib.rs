//! Replays the creation of a directory tree the way a shared-disk file system locks it, on a real cluster of
//! processes on this machine, and measures the cost of finding a lock's master.
//!
//! Per creation, as GFS2 does it: the parent directory's lock exclusive (kept until another node wants it), the new
//! inode's lock exclusive and its iopen lock shared, the latter two with NOTIFY; then the entry is really created in
//! a folder that all nodes share, with its content, permissions and times (see [`tree`]). The cases and figures are
//! those of the Lockify paper (FAST '26), section 5.
//!
//! One process per node: [`worker::run`] is a node's process, [`run`] the parent's part.
#![forbid(unsafe_code)]

mod clock;
mod cluster;
pub mod command;
mod creator;
mod folder;
mod glock;
mod image;
mod locks;
mod measure;
mod pingpong;
mod place;
mod proof;
mod recorder;
mod relations;
mod results;
mod run;
pub mod tree;
mod wire;
pub mod worker;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use lockify_report::crew::{Program, WorkerError};
pub use relations::Relation;
pub use run::RunError;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use measure::{DelayResult, Plan};
use tree::{Entry, TreeError};

/// The source of the created tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The first so many entries of a directory.
    Tree(PathBuf, usize),
    /// The shape of `mdtest -z 2 -b 2 -I N`: seven directories with N files each.
    Mdtest(u32),
}

/// The subject and place of the measurement.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source of the created tree.
    pub source: Source,
    /// Names of the policies, in the order of the table.
    pub policies: Vec<String>,
    /// Delays added to every message.
    pub delays: Vec<Duration>,
    /// Rounds that count; each case also has one before them that does not.
    pub rounds: u32,
    /// Longest time of a run: slow cases create fewer entries.
    pub budget: Duration,
    /// How long claims are gathered before they are sent, at most.
    pub batch_age: Duration,
    /// How long a node keeps the parent's lock after it was granted, even if others want it
    /// (GFS2's minimum hold time).
    pub hold: Duration,
    /// Where `report.jsonl` and `report.html` go.
    pub out: PathBuf,
    /// Where to make the shared folder; `None`: in `out`.
    pub shared: Option<PathBuf>,
    /// How to start a worker.
    pub worker: Program,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// There is nothing to create.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// There is no place for the shared folder.
    #[error(
        "cannot create a shared folder in {path}: {error}; choose another place with --shared DIR"
    )]
    Shared {
        /// The place.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The output directory cannot be used.
    #[error("cannot write to {path}: {error}; choose another place with --out DIR")]
    Out {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

/// The results.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The table and the expectations, for people.
    pub text: String,
    /// The expectations and findings.
    pub relations: Vec<Relation>,
    /// Events of all histories checked.
    pub events: u64,
    /// Violations in them.
    pub violations: u64,
    /// The result rows.
    pub rows: PathBuf,
    /// The page with the plots.
    pub page: PathBuf,
}

/// Measures everything and writes the results.
///
/// # Errors
/// [`DemoError`]. Violations are no error here: see [`Outcome::violations`].
pub fn run(options: &Options) -> Result<Outcome, DemoError> {
    let entries = match &options.source {
        Source::Tree(root, limit) => tree::read(root, *limit)?,
        Source::Mdtest(items) => tree::mdtest(2, 2, *items),
    };
    let out = |path: &Path| {
        let path = path.to_owned();
        move |error| DemoError::Out { path, error }
    };
    std::fs::create_dir_all(&options.out).map_err(out(&options.out))?;
    let parent = options.shared.as_ref().unwrap_or(&options.out);
    let (place, lock) = (parent.join(folder::NAME), parent.join("lockify-shared.lock"));
    let shared = |error| DemoError::Shared { path: place.clone(), error };
    let scratch = Scratch::make(place.clone(), &lock).map_err(shared)?;
    let (tree, flat) = (scratch.0.join("tree.json"), scratch.0.join("flat.json"));
    let copies = copies(&entries);
    let replayed = tree::copies(&entries, copies);
    save(&replayed, &tree).map_err(out(&tree))?;
    save(&tree::flattened(&entries), &flat).map_err(out(&flat))?;
    let results = measure::measure(&Plan {
        policies: &options.policies,
        delays: &options.delays,
        rounds: options.rounds,
        budget: options.budget,
        hold: options.hold,
        batch_age: options.batch_age,
        entries: replayed.len() as u32,
        tree: &tree,
        flat: &flat,
        scratch: &scratch.0,
        worker: &options.worker,
    })?;
    let what = creation(&options.source, &entries, copies, &place);
    report(options, &results, &what)
}

/// Creations that one node's run should have: fewer end before a processor that also does something
/// else for a moment has evened out, and the final barrier, once per run, counts for too much.
const CREATIONS: usize = 20_000;

/// How often a run creates the tree.
fn copies(entries: &[Entry]) -> u32 {
    let bytes: u64 = entries.iter().map(Entry::bytes).sum();
    let room = tree::MAX_TOTAL / bytes.max(1);
    (CREATIONS.div_ceil(entries.len().max(1)) as u64).clamp(1, room.max(1)) as u32
}

/// The description of a creation, for people.
fn creation(source: &Source, entries: &[Entry], copies: u32, place: &Path) -> String {
    let what = match source {
        Source::Mdtest(_) => "an empty file or a plain directory, as mdtest makes them (the \
                              paper's case: nothing but locks and names)"
            .to_owned(),
        Source::Tree(root, _) => format!(
            "an entry of {} as cp -a copies it, without its owner: a file with its content (the \
             first {} KiB; {:.1} KiB in the mean, at most {} MiB in all, read before the clock \
             starts), permissions and times; a directory; a symbolic link",
            root.display(),
            tree::MAX_FILE >> 10,
            entries.iter().map(Entry::bytes).sum::<u64>() as f64 / 1024.0 / entries.len() as f64,
            tree::MAX_TOTAL >> 20,
        ),
    };
    format!(
        "A creation: {what}.\nA run of one active node: the tree's {} entries {copies} times, each copy in a \
         directory of its own, as far as the time allows.\nShared folder: {}.",
        entries.len(),
        place.display()
    )
}

/// The directory that everything is created in; removed when this is dropped.
struct Scratch(PathBuf, #[expect(dead_code, reason = "locked as long as it lives")] File);

impl Scratch {
    /// Makes it anew: what an interrupted run has left is removed.
    fn make(path: PathBuf, lock: &Path) -> std::io::Result<Scratch> {
        let lock = File::create(lock)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            Errno::WOULDBLOCK => std::io::Error::other("another demo runs there"),
            e => e.into(),
        })?;
        match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::fs::create_dir(&path)?;
        folder::spread(&path);
        Ok(Scratch(path, lock))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next run removes files that cannot be removed now.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn save(entries: &[Entry], path: &Path) -> std::io::Result<()> {
    std::fs::write(path, serde_json::to_vec(entries)?)
}

fn report(options: &Options, results: &[DelayResult], what: &str) -> Result<Outcome, DemoError> {
    let (events, violations) = results::proof(results);
    let relations = relations::judge(results, violations, events);
    let all = results::rows(results);
    let (rows, page) = results::write(results, &all, &relations, what, &options.out)
        .map_err(|(path, error)| DemoError::Out { path, error })?;
    let mut text = format!("{what}\n\n") + &results::text(results, &all, &relations);
    if let Some(violated) = results::first_violation(results) {
        text += &format!("\nThe first run with violations:\n{violated}");
    }
    Ok(Outcome { text, relations, events, violations, rows, page })
}
