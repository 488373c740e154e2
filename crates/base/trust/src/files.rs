//! Files of secrets and certificates.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::error::TrustError;

/// Permissions of a file that only its owner may read.
pub(crate) const SECRET: u32 = 0o600;
/// Permissions of a file that everybody may read.
pub(crate) const PUBLIC: u32 = 0o644;

/// The longest file that is read, bytes: a bundle of some hundred certificates.
const LONGEST: u64 = 1 << 20;

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TrustError {
    let path = path.to_owned();
    move |error| TrustError::File { what, path, error }
}

/// Reads a file that holds a secret: refused if others than its owner, or root, or its group can
/// read it, or others than its owner can change it.
pub(crate) fn read_secret(path: &Path) -> Result<String, TrustError> {
    let me = rustix::process::geteuid().as_raw();
    let file = File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => unreadable(path, me),
        _ => failed("cannot read", path)(e),
    })?;
    let found = file.metadata().map_err(failed("cannot look at", path))?;
    let exposed = |who: String, remedy: String| {
        Err(TrustError::Exposed { path: path.to_owned(), who, remedy })
    };
    if found.mode() & 0o027 != 0 {
        let who = format!("its permissions ({:03o}) are open to others", found.mode() & 0o777);
        return exposed(who, format!("`chmod 600 {0}`, or 640 for a group", path.display()));
    }
    if found.uid() != me && found.uid() != 0 {
        let who = format!("it belongs to user {} and this is user {me}", found.uid());
        return exposed(who, format!("`chown {me} {}`", path.display()));
    }
    read(file, path)
}

/// A secret that its user cannot read.
fn unreadable(path: &Path, me: u32) -> TrustError {
    let what = match std::fs::symlink_metadata(path) {
        Ok(_) => format!(
            "user {me} may not read it: `chown {me} {0} && chmod 600 {0}`, or give it a group of that \
             user and 640",
            path.display()
        ),
        Err(_) => format!("user {me} may not enter its folder: let that user or its group do so"),
    };
    TrustError::Content { path: path.to_owned(), what }
}

/// Reads a file that is no secret.
pub(crate) fn read_public(path: &Path) -> Result<String, TrustError> {
    read(File::open(path).map_err(failed("cannot read", path))?, path)
}

fn read(file: File, path: &Path) -> Result<String, TrustError> {
    let content = |what: &str| TrustError::Content { path: path.to_owned(), what: what.into() };
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed("cannot read", path))?;
    if bytes.len() as u64 > LONGEST {
        return Err(content("more than a mebibyte, which keys and certificates never are"));
    }
    String::from_utf8(bytes).map_err(|_| content("this is no text: keys and certificates are PEM"))
}

/// Writes a file that must not exist; never readable by more than `mode` says.
pub(crate) fn create(path: &Path, mode: u32, text: &str) -> Result<(), TrustError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let file = match opened {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let what = "move it away first if you are sure that nobody needs it";
            return Err(TrustError::Exists(path.to_owned(), what));
        }
        opened => opened.map_err(failed("cannot make", path))?,
    };
    let written = fill(&file, mode, text);
    if written.is_err() {
        // Half a key is worse than none: the next attempt must not find it.
        let _ = std::fs::remove_file(path);
    }
    written.map_err(failed("cannot write", path))
}

/// Replaces a file in one step: whoever reads it sees the old or the new one, whole.
pub(crate) fn replace(path: &Path, mode: u32, text: &str) -> Result<(), TrustError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = std::path::PathBuf::from(name);
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed("cannot remove", &new)(e));
        }
        _ => {}
    }
    create(&new, mode, text)?;
    std::fs::rename(&new, path).map_err(failed("cannot replace", path))
}

fn fill(mut file: &File, mode: u32, text: &str) -> std::io::Result<()> {
    // The umask may have taken some of the bits.
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
