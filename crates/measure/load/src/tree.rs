//! A tree of directories full of items: mdtest's low-level metadata load, with its parameters.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use clap::ValueEnum;

use crate::Ended;
use crate::barrier::settle;
use crate::failure::{Failure, OnFile as _};
use crate::latency::Sampler;
use crate::outcome::{Outcome, Phase};
use crate::start::{Clock, wait_until};
use crate::witness::Witness;

/// Create, stat and remove directories and files in a tree, with mdtest's parameters.
#[derive(clap::Args)]
pub struct Args {
    /// The tree's root; its parent must exist.
    #[arg(long)]
    at: PathBuf,
    /// Levels below the root (mdtest -z).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=16))]
    depth: u32,
    /// Directories in a directory (mdtest -b).
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    branch: u32,
    /// Items of each kind in each directory of the tree (mdtest -I).
    #[arg(long, default_value_t = 5000)]
    items: u64,
    /// This process among those that work in one tree; part of the items' names.
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// The kinds of entries to make.
    #[arg(long, value_delimiter = ',', default_value = "directories,files")]
    kinds: Vec<Kind>,
    /// The steps, in mdtest's order.
    #[arg(long, value_delimiter = ',', default_value = "create")]
    phases: Vec<Step>,
    /// Use a tree that is there, instead of making one.
    #[arg(long)]
    shared: bool,
    /// Make the tree without items, for processes that then use --shared.
    #[arg(long, conflicts_with = "shared")]
    prepare: bool,
    /// When to begin, in seconds since 1970: several nodes begin together.
    #[arg(long, value_name = "SECONDS")]
    start_at: Option<f64>,
    /// Where `lockify-load witness` runs on another node: a phase ends when it has seen the parent.
    #[arg(long, value_name = "ADDRESS:PORT")]
    witness: Option<SocketAddr>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Directories,
    Files,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Create,
    Stat,
    Remove,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Directories => "directories",
            Kind::Files => "files",
        }
    }

    fn letter(self) -> char {
        match self {
            Kind::Directories => 'd',
            Kind::Files => 'f',
        }
    }
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Stat => "stat",
            Step::Remove => "remove",
        }
    }

    /// The operation, and how an error calls it.
    fn operation(self, kind: Kind) -> (&'static str, fn(&Path) -> io::Result<()>) {
        match (self, kind) {
            (Step::Create, Kind::Directories) => ("make", |path| fs::create_dir(path)),
            (Step::Create, Kind::Files) => ("create", |path| fs::File::create_new(path).map(drop)),
            (Step::Stat, _) => ("stat", |path| fs::symlink_metadata(path).map(drop)),
            (Step::Remove, Kind::Directories) => ("remove", |path| fs::remove_dir(path)),
            (Step::Remove, Kind::Files) => ("remove", |path| fs::remove_file(path)),
        }
    }
}

/// Runs the phases for directories, then for files, as mdtest does.
pub fn run(args: &Args) -> Ended {
    let folders = folders(&args.at, args.depth, args.branch)?;
    if !args.shared {
        for folder in &folders {
            fs::create_dir(folder).on("make", folder)?;
        }
    }
    let mut phases = Vec::new();
    if !args.prepare {
        let mut witness = args.witness.map(Witness::connect).transpose()?;
        wait_until(args.start_at)?;
        for &kind in &args.kinds {
            for &step in &args.phases {
                phases.push(phase(args, &folders, kind, step, witness.as_mut())?);
            }
        }
    }
    Outcome { workload: "tree", phases }.print()
}

/// All directories of the tree, parents first.
fn folders(root: &Path, depth: u32, branch: u32) -> Result<Vec<PathBuf>, Failure> {
    let mut folders = vec![root.to_owned()];
    let mut level = 0..1;
    for _ in 0..depth {
        for parent in level.clone() {
            for child in 0..branch {
                folders.push(folders[parent].join(format!("t{child}")));
            }
        }
        level = level.end..folders.len();
        if folders.len() > 1_000_000 {
            let told = "a tree of more than a million directories: lower --depth or --branch";
            return Err(Failure::Other(told.to_owned()));
        }
    }
    Ok(folders)
}

fn phase(
    args: &Args,
    folders: &[PathBuf],
    kind: Kind,
    step: Step,
    witness: Option<&mut Witness>,
) -> Result<Phase, Failure> {
    let (what, operation) = step.operation(kind);
    let mut sampler = Sampler::new();
    let clock = Clock::start();
    let mut path = PathBuf::new();
    for folder in folders {
        for item in 0..args.items {
            path.clone_from(folder);
            path.push(format!("{}.{}.{item}", kind.letter(), args.rank));
            sampler.time(|| operation(&path)).on(what, &path)?;
        }
    }
    let done = clock.elapsed();
    // The barrier is the lockspace's: giving up the last parent waits for everything before.
    settle(folders.last().map(std::slice::from_ref).unwrap_or_default(), witness)?;
    Ok(Phase::new(step.name(), kind.name(), &sampler, &clock.stop(done)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(at: PathBuf, phases: Vec<Step>) -> Args {
        Args {
            at,
            depth: 2,
            branch: 2,
            items: 3,
            rank: 7,
            kinds: vec![Kind::Directories, Kind::Files],
            phases,
            shared: false,
            prepare: false,
            start_at: None,
            witness: None,
        }
    }

    fn count(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| 1 + count(&e.path())).sum()
    }

    #[test]
    fn mdtests_small_tree_has_seven_directories() -> Result<(), Failure> {
        assert_eq!(folders(Path::new("/x"), 2, 2)?.len(), 7);
        assert_eq!(folders(Path::new("/x"), 0, 9)?.len(), 1);
        assert_eq!(folders(Path::new("/x"), 1, 3)?[3], Path::new("/x/t2"));
        assert!(folders(Path::new("/x"), 16, 64).is_err());
        Ok(())
    }

    #[test]
    fn what_is_created_is_there_and_what_is_removed_is_gone() -> Result<(), Failure> {
        let folder = tempfile::tempdir().on("make", Path::new("a temporary folder"))?;
        let root = folder.path().join("a");
        run(&args(root.clone(), vec![Step::Create]))?;
        assert_eq!(count(&root), 6 + 7 * 3 * 2);
        assert!(root.join("t1/t0/f.7.2").is_file() && root.join("t1/t0/d.7.2").is_dir());
        assert!(run(&args(root.clone(), vec![Step::Create])).is_err(), "the tree is there");
        let shared = Args { shared: true, ..args(root.clone(), vec![Step::Stat, Step::Remove]) };
        run(&shared)?;
        assert_eq!(count(&root), 6);
        assert!(run(&shared).is_err(), "nothing is left to stat");
        Ok(())
    }
}
