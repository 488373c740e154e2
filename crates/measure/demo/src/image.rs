//! An entry as it is in memory before the clock starts, and its creation.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::tree::{Attributes, Content, Entry, Kind};

/// Contents of files that were read already, by where they are from: runs use the same again.
#[derive(Debug, Default)]
pub struct Contents(HashMap<PathBuf, Rc<[u8]>>);

impl Contents {
    /// A file's content; less of it, or nothing, if it has changed since the tree was read.
    fn get(&mut self, content: &Content) -> Rc<[u8]> {
        if let Some(known) = self.0.get(&content.source) {
            return known.clone();
        }
        let bytes: Rc<[u8]> = read(&content.source, content.bytes).unwrap_or_default().into();
        self.0.insert(content.source.clone(), bytes.clone());
        bytes
    }
}

fn read(path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why an entry cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file system refuses it.
    #[error(
        "cannot create {path} in the shared folder: {error}; choose a file system with room for it with --shared DIR"
    )]
    Create {
        /// The entry.
        path: String,
        /// The system's error.
        error: Errno,
    },
    /// A path cannot be used.
    #[error("a path of the tree holds a NUL byte")]
    Nul,
}

#[derive(Debug)]
enum What {
    Directory,
    Symlink(CString),
    File(Rc<[u8]>),
}

/// An entry that can be created at once.
#[derive(Debug)]
pub struct Image {
    path: CString,
    what: What,
    attributes: Option<(Mode, Timestamps)>,
}

impl Image {
    /// Reads the entry's content and attributes.
    ///
    /// # Errors
    /// [`ImageError::Nul`].
    pub fn load(entry: &Entry, contents: &mut Contents) -> Result<Image, ImageError> {
        let text =
            |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| ImageError::Nul);
        let what = match &entry.kind {
            Kind::Directory => What::Directory,
            Kind::Symlink(target) => What::Symlink(text(target)?),
            Kind::File(content) => {
                What::File(content.as_ref().map_or_else(Rc::default, |c| contents.get(c)))
            }
        };
        Ok(Image { path: text(&entry.path)?, what, attributes: entry.attributes.map(attributes) })
    }

    /// Creates it in a folder, as `cp -a` does.
    ///
    /// # Errors
    /// [`ImageError::Create`].
    pub fn create(&self, folder: &File) -> Result<(), ImageError> {
        let path = || self.path.to_string_lossy().into_owned();
        self.try_create(folder).map_err(|error| ImageError::Create { path: path(), error })
    }

    fn try_create(&self, folder: &File) -> Result<(), Errno> {
        match &self.what {
            What::Directory => {
                rustix::fs::mkdirat(folder, &self.path, Mode::from_raw_mode(0o755))?;
                let Some((mode, times)) = &self.attributes else { return Ok(()) };
                rustix::fs::chmodat(folder, &self.path, *mode, AtFlags::empty())?;
                rustix::fs::utimensat(folder, &self.path, times, AtFlags::empty())
            }
            What::Symlink(target) => {
                rustix::fs::symlinkat(target, folder, &self.path)?;
                let Some((_, times)) = &self.attributes else { return Ok(()) };
                rustix::fs::utimensat(folder, &self.path, times, AtFlags::SYMLINK_NOFOLLOW)
            }
            What::File(content) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(0o644);
                let file = rustix::fs::openat(folder, &self.path, flags, mode)?;
                write_all(&file, content)?;
                let Some((mode, times)) = &self.attributes else { return Ok(()) };
                rustix::fs::fchmod(&file, *mode)?;
                rustix::fs::futimens(&file, times)
            }
        }
    }
}

fn write_all(file: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn attributes(a: Attributes) -> (Mode, Timestamps) {
    let time = |(seconds, nanos)| Timespec { tv_sec: seconds, tv_nsec: nanos };
    let times = Timestamps { last_access: time(a.accessed), last_modification: time(a.modified) };
    (Mode::from_raw_mode(a.permissions), times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    #[test]
    fn creates_what_was_read() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for i in 0..100 {
            std::fs::write(from.path().join(format!("f{i:03}")), format!("content {i}")).unwrap();
        }
        let locked = from.path().join("f007");
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o440)).unwrap();
        std::fs::create_dir(from.path().join("dir")).unwrap();
        symlink("f007", from.path().join("link")).unwrap();
        let (mut contents, folder) = (Contents::default(), File::open(to.path()).unwrap());
        for entry in crate::tree::read(from.path(), 1000).unwrap() {
            Image::load(&entry, &mut contents).unwrap().create(&folder).unwrap();
        }
        let made = to.path().join("f007");
        assert_eq!(std::fs::read(&made).unwrap(), b"content 7");
        let (was, is) = (std::fs::metadata(&locked).unwrap(), std::fs::metadata(&made).unwrap());
        assert_eq!(
            (was.mode(), was.mtime(), was.mtime_nsec()),
            (is.mode(), is.mtime(), is.mtime_nsec())
        );
        assert_eq!(std::fs::read_link(to.path().join("link")).unwrap(), Path::new("f007"));
        assert!(to.path().join("dir").is_dir());
    }
}
