//! The directory tree whose creation is replayed: read from disk, or of mdtest's shape.
//!
//! A creation is that of `cp -a` without the owner: a file with its content, permissions and times,
//! a directory with its permissions and times, a symbolic link with its target and times. mdtest
//! creates empty files and plain directories instead.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One entry of a tree; parents come before their children.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the tree's root.
    pub path: PathBuf,
    /// Index of the parent directory's entry; `None` for the root.
    pub parent: Option<u32>,
    /// The kind of entry.
    pub kind: Kind,
    /// Permissions and times to set; `None`: those that a creation gives.
    pub attributes: Option<Attributes>,
}

/// The kind of an entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A symbolic link to this.
    Symlink(PathBuf),
    /// A file with this content; devices, sockets and pipes are created as empty ones.
    File(Option<Content>),
}

/// The content of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Content {
    /// The file that has it.
    pub source: PathBuf,
    /// Bytes of it that are written, from its beginning.
    pub bytes: u64,
}

/// Permissions and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// The nine permission bits.
    pub permissions: u32,
    /// Last access: seconds since 1970, and nanoseconds.
    pub accessed: (i64, i64),
    /// Last change: seconds since 1970, and nanoseconds.
    pub modified: (i64, i64),
}

impl Entry {
    /// Returns true if it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Bytes that are written into it.
    pub fn bytes(&self) -> u64 {
        if let Kind::File(Some(content)) = &self.kind { content.bytes } else { 0 }
    }
}

/// At most so much of a file is written: workers have the contents in memory.
pub const MAX_FILE: u64 = 64 * 1024;

/// At most so much of all files together is written; files after that are empty.
pub const MAX_TOTAL: u64 = 256 * 1024 * 1024;

/// Why there is no tree to replay.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The directory cannot be read.
    #[error(
        "cannot read {path} ({source}): name a readable directory with --tree DIR, or use --mdtest"
    )]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The directory holds too little to measure with.
    #[error(
        "{path} has only {found} entries, at least {wanted} are needed: name a larger directory with --tree DIR, or use --mdtest"
    )]
    TooSmall {
        /// The directory.
        path: PathBuf,
        /// How many it has.
        found: usize,
        /// How many are needed.
        wanted: usize,
    },
}

/// Fewer entries than this say nothing about throughput.
pub const MIN_ENTRIES: usize = 100;

/// Reads the first `limit` entries below `root`, each directory's entries in the order of their
/// names, level by level within a subtree, so that the same tree gives the same list everywhere.
///
/// Unreadable subdirectories count as empty ones; symbolic links are not followed.
///
/// # Errors
/// [`TreeError`] if `root` cannot be read or has fewer than [`MIN_ENTRIES`] entries.
pub fn read(root: &Path, limit: usize) -> Result<Vec<Entry>, TreeError> {
    let unreadable = |source| TreeError::Unreadable { path: root.to_owned(), source };
    let mut entries: Vec<Entry> = Vec::new();
    let mut room = MAX_TOTAL;
    // Directories still to be listed; the last one is next.
    let mut open = vec![(PathBuf::new(), None)];
    while let Some((dir, index)) = open.pop() {
        let children = match children(&root.join(&dir)) {
            Ok(children) => children,
            Err(e) if index.is_none() => return Err(unreadable(e)),
            Err(_) => continue,
        };
        let first_dir = open.len();
        for (name, is_dir) in children {
            if entries.len() == limit {
                break;
            }
            let path = dir.join(name);
            if is_dir {
                open.push((path.clone(), Some(entries.len() as u32)));
            }
            let (kind, attributes) = inspect(&root.join(&path), is_dir, &mut room);
            entries.push(Entry { path, parent: index, kind, attributes });
        }
        // The first subdirectory by name is listed first.
        open[first_dir..].reverse();
        if entries.len() == limit {
            break;
        }
    }
    if entries.len() < MIN_ENTRIES.min(limit) {
        return Err(TreeError::TooSmall {
            path: root.to_owned(),
            found: entries.len(),
            wanted: MIN_ENTRIES.min(limit),
        });
    }
    Ok(entries)
}

/// The entry at a path. An unreadable one is created without content or attributes.
fn inspect(path: &Path, is_dir: bool, room: &mut u64) -> (Kind, Option<Attributes>) {
    let Ok(found) = fs::symlink_metadata(path) else {
        return (if is_dir { Kind::Directory } else { Kind::File(None) }, None);
    };
    let attributes = Attributes {
        // Further entries must be created in a directory, and it be removed later.
        permissions: found.mode() & 0o777 | if is_dir { 0o700 } else { 0 },
        // Reading the tree changes the last access, so that it would not be the same next time.
        accessed: (found.mtime(), found.mtime_nsec()),
        modified: (found.mtime(), found.mtime_nsec()),
    };
    let kind = if is_dir {
        Kind::Directory
    } else if let Ok(target) = fs::read_link(path) {
        Kind::Symlink(target)
    } else {
        let bytes = found.len().min(MAX_FILE).min(*room);
        let readable = found.is_file() && bytes > 0 && fs::File::open(path).is_ok();
        *room -= if readable { bytes } else { 0 };
        Kind::File(readable.then(|| Content { source: path.to_owned(), bytes }))
    };
    (kind, Some(attributes))
}

/// A directory's entries by name, with whether each is a directory itself.
fn children(dir: &Path) -> std::io::Result<Vec<(std::ffi::OsString, bool)>> {
    let mut all = fs::read_dir(dir)?
        .map(|e| e.and_then(|e| Ok((e.file_name(), e.file_type()?.is_dir()))))
        .collect::<std::io::Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

/// The shape that `mdtest -z depth -b branch -I items` makes: a full tree of directories with
/// `items` files in each.
pub fn mdtest(depth: u32, branch: u32, items: u32) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut level = vec![(PathBuf::new(), None)];
    for remaining in (0..=depth).rev() {
        let mut next = Vec::new();
        for (dir, index) in level {
            let mut add = |name: String, is_dir| {
                let kind = if is_dir { Kind::Directory } else { Kind::File(None) };
                let path = dir.join(name);
                entries.push(Entry { path, parent: index, kind, attributes: None });
                entries.len() as u32 - 1
            };
            for i in 0..items {
                add(format!("file.mdtest.0.{i}"), false);
            }
            for b in 0..if remaining > 0 { branch } else { 0 } {
                let name = format!("mdtest_tree.0.{b}");
                let index = add(name.clone(), true);
                next.push((dir.join(name), Some(index)));
            }
        }
        level = next;
    }
    entries
}

/// The tree so many times, each copy in a directory of its own.
pub fn copies(entries: &[Entry], count: u32) -> Vec<Entry> {
    let mut all = Vec::with_capacity((entries.len() + 1) * count as usize);
    for copy in 1..=count {
        let root = PathBuf::from(format!("copy-{copy}"));
        let index = all.len() as u32;
        all.push(Entry {
            path: root.clone(),
            parent: None,
            kind: Kind::Directory,
            attributes: None,
        });
        all.extend(entries.iter().map(|e| Entry {
            path: root.join(&e.path),
            parent: Some(e.parent.map_or(index, |p| index + 1 + p)),
            ..e.clone()
        }));
    }
    all
}

/// The same entries, all directly under the root: the paper's case of several
/// nodes that create under one parent (figure 8).
pub fn flattened(entries: &[Entry]) -> Vec<Entry> {
    let flat = |(i, e): (usize, &Entry)| {
        let name = e.path.file_name().unwrap_or_default().to_string_lossy();
        // A number makes it unique; the name's end goes where both would be too long.
        let short: String = name.chars().take(50).collect();
        Entry { path: format!("{i:06}-{short}").into(), parent: None, ..e.clone() }
    };
    entries.iter().enumerate().map(flat).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parents_come_first(entries: &[Entry]) {
        for (i, e) in entries.iter().enumerate() {
            match e.parent {
                Some(p) => {
                    let parent = &entries[p as usize];
                    assert!((p as usize) < i && parent.is_dir());
                    assert_eq!(e.path.parent(), Some(parent.path.as_path()));
                }
                None => assert_eq!(e.path.parent(), Some(Path::new(""))),
            }
        }
    }

    fn small_tree(dir: &Path) {
        for d in ["b", "a/x", "c"] {
            fs::create_dir_all(dir.join(d)).unwrap();
        }
        for i in 0..40 {
            for d in ["a/x", "b", "c"] {
                fs::write(dir.join(d).join(format!("f{i:02}")), "").unwrap();
            }
        }
    }

    #[test]
    fn reads_a_tree_in_a_fixed_order_with_parents_first() {
        let dir = tempfile::tempdir().unwrap();
        small_tree(dir.path());
        let all = read(dir.path(), 1000).unwrap();
        assert_eq!(all.len(), 4 + 120);
        parents_come_first(&all);
        assert_eq!(all, read(dir.path(), 1000).unwrap());
        let top: Vec<_> = all.iter().take(4).map(|e| e.path.to_str().unwrap()).collect();
        assert_eq!(top, ["a", "b", "c", "a/x"]);
        assert_eq!(read(dir.path(), 100).unwrap(), all[..100]);
    }

    #[test]
    fn takes_content_permissions_times_and_links() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        small_tree(dir.path());
        let file = dir.path().join("b/f00");
        fs::write(&file, vec![1; MAX_FILE as usize + 1]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("f00", dir.path().join("b/link")).unwrap();
        let all = read(dir.path(), 1000).unwrap();
        let find = |path: &str| all.iter().find(|e| e.path == Path::new(path)).unwrap();
        let big = find("b/f00");
        assert_eq!((big.bytes(), big.attributes.unwrap().permissions), (MAX_FILE, 0o640));
        let changed = fs::metadata(&file).unwrap();
        assert_eq!(big.attributes.unwrap().modified, (changed.mtime(), changed.mtime_nsec()));
        assert_eq!(find("b/link").kind, Kind::Symlink("f00".into()));
        assert_eq!(find("b/f01").bytes(), 0);
    }

    #[test]
    fn a_small_or_missing_tree_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("one"), "").unwrap();
        let small = read(dir.path(), 5000).unwrap_err().to_string();
        assert!(small.contains("only 1 entries") && small.contains("--tree"), "{small}");
        let missing = read(&dir.path().join("none"), 5000).unwrap_err().to_string();
        assert!(missing.contains("cannot read") && missing.contains("--tree"), "{missing}");
    }

    #[test]
    fn mdtest_makes_seven_directories_of_items() {
        let all = mdtest(2, 2, 10);
        parents_come_first(&all);
        assert_eq!(all.iter().filter(|e| e.is_dir()).count(), 6);
        assert_eq!(all.iter().filter(|e| !e.is_dir()).count(), 70);
    }

    #[test]
    fn copies_are_complete_trees_side_by_side() {
        let tree = mdtest(2, 2, 10);
        let all = copies(&tree, 3);
        parents_come_first(&all);
        assert_eq!(all.len(), 3 * (tree.len() + 1));
        assert_eq!(all.iter().filter(|e| e.parent.is_none()).count(), 3);
        let unique: std::collections::BTreeSet<_> = all.iter().map(|e| &e.path).collect();
        assert_eq!(unique.len(), all.len());
    }

    #[test]
    fn flattening_keeps_count_and_kinds_and_makes_names_unique() {
        let all = mdtest(2, 2, 10);
        let flat = flattened(&all);
        let unique: std::collections::BTreeSet<_> = flat.iter().map(|e| &e.path).collect();
        assert_eq!(unique.len(), all.len());
        assert!(flat.iter().zip(&all).all(|(f, e)| f.kind == e.kind && f.parent.is_none()));
    }
}
