//! A set of files, some of which exist, in directories of a given width: Filebench's fileset.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rand::RngExt as _;
use rand_distr::{Distribution as _, Gamma};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::failure::{Failure, OnFile as _};

/// Share of the files that exist at the beginning.
const PREALLOCATED: f64 = 0.8;
/// Filebench's sizes follow this gamma distribution.
const GAMMA_SHAPE: f64 = 1.5;

/// Files by number. A thread takes a file out, so that no two work on the same one.
pub struct Fileset {
    root: PathBuf,
    files: usize,
    width: usize,
    mean_size: f64,
    sizes: Gamma<f64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    present: Vec<usize>,
    absent: Vec<usize>,
}

impl Fileset {
    /// A set below `root`, which must not exist yet; directories have `width` entries.
    pub fn create(
        root: &Path,
        files: usize,
        width: usize,
        mean_size: u64,
        random: &mut Xoshiro256PlusPlus,
    ) -> Result<Fileset, Failure> {
        let mean_size = mean_size.max(1) as f64;
        let sizes = Gamma::new(GAMMA_SHAPE, mean_size / GAMMA_SHAPE)
            .map_err(|e| Failure::Other(format!("a mean size of {mean_size} bytes: {e}")))?;
        let state = Mutex::new(State::default());
        let width = width.max(2);
        let set = Fileset { root: root.to_owned(), files, width, mean_size, sizes, state };
        fs::create_dir(root).on("make", root)?;
        for number in (0..files).step_by(set.width) {
            let folder = set.folder(number);
            fs::create_dir_all(&folder).on("make", &folder)?;
        }
        let mut state = State::default();
        for number in 0..files {
            if random.random_bool(PREALLOCATED) {
                let path = set.path(number);
                fs::write(&path, vec![b'l'; set.size(random)]).on("write", &path)?;
                state.present.push(number);
            } else {
                state.absent.push(number);
            }
        }
        Ok(Fileset { state: Mutex::new(state), ..set })
    }

    /// A file's size, in bytes.
    pub fn size(&self, random: &mut Xoshiro256PlusPlus) -> usize {
        // Ten times the mean is beyond any quantile that matters, and bounds a thread's memory.
        self.sizes.sample(random).clamp(1.0, 10.0 * self.mean_size) as usize
    }

    /// Takes out any file that exists.
    pub fn take_present(&self, random: &mut Xoshiro256PlusPlus) -> Option<usize> {
        self.with(|state| take(&mut state.present, random))
    }

    /// Takes out any file that does not exist.
    pub fn take_absent(&self, random: &mut Xoshiro256PlusPlus) -> Option<usize> {
        self.with(|state| take(&mut state.absent, random))
    }

    /// Puts a file back that exists.
    pub fn put_present(&self, number: usize) {
        self.with(|state| state.present.push(number));
    }

    /// Puts a file back that does not exist.
    pub fn put_absent(&self, number: usize) {
        self.with(|state| state.absent.push(number));
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where a file is.
    pub fn path(&self, number: usize) -> PathBuf {
        self.folder(number).join(format!("f{number}"))
    }

    /// Directories have `width` entries on every level, so their number falls by that factor.
    fn folder(&self, number: usize) -> PathBuf {
        let mut names = Vec::new();
        let (mut folder, mut last) =
            (number / self.width, self.files.saturating_sub(1) / self.width);
        while last > 0 {
            names.push(format!("d{folder}"));
            folder /= self.width;
            last /= self.width;
        }
        names.iter().rev().fold(self.root.clone(), |path, name| path.join(name))
    }

    /// The set's own directory, parent of all.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn take(numbers: &mut Vec<usize>, random: &mut Xoshiro256PlusPlus) -> Option<usize> {
    let last = numbers.len().checked_sub(1)?;
    let chosen = random.random_range(0..=last);
    Some(numbers.swap_remove(chosen))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn set(files: usize, width: usize) -> Result<(tempfile::TempDir, Fileset), Failure> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let folder = tempfile::tempdir().on("make", Path::new("a temporary folder"))?;
        let set = Fileset::create(&folder.path().join("s"), files, width, 100, &mut random)?;
        Ok((folder, set))
    }

    #[test]
    fn no_directory_is_wider_than_asked() -> Result<(), Failure> {
        let (folder, set) = set(1000, 5)?;
        let mut open = vec![folder.path().join("s")];
        let mut found = 0;
        while let Some(path) = open.pop() {
            let entries: Vec<_> = fs::read_dir(&path).on("read", &path)?.flatten().collect();
            assert!(entries.len() <= 5, "{} has {}", path.display(), entries.len());
            found += entries.iter().filter(|e| e.path().is_file()).count();
            open.extend(entries.iter().map(|e| e.path()).filter(|p| p.is_dir()));
        }
        assert!((700..900).contains(&found), "{found} of 1000 exist: 80 % should");
        let present = set.with(|state| state.present.len());
        assert_eq!(present, found);
        Ok(())
    }

    #[test]
    fn a_file_is_taken_by_one_only() -> Result<(), Failure> {
        let (_folder, set) = set(10, 1_000_000)?;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(2);
        let mut taken = Vec::new();
        while let Some(number) = set.take_present(&mut random) {
            assert!(set.path(number).is_file());
            taken.push(number);
        }
        while let Some(number) = set.take_absent(&mut random) {
            assert!(!set.path(number).exists());
            taken.push(number);
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..10).collect::<Vec<_>>());
        set.put_absent(3);
        set.put_present(4);
        assert_eq!(set.take_absent(&mut random), Some(3));
        assert_eq!(set.take_present(&mut random), Some(4));
        Ok(())
    }

    #[test]
    fn sizes_have_the_mean_that_was_asked_for() -> Result<(), Failure> {
        let (_folder, set) = set(1, 20)?;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(3);
        let sum: usize = (0..10_000).map(|_| set.size(&mut random)).sum();
        assert!((95..105).contains(&(sum / 10_000)), "mean {}", sum / 10_000);
        Ok(())
    }
}
