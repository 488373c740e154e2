//! The signs that this machine belongs to a cluster.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where a node's configuration is.
pub const CONFIGURATION: &str = "/etc/lockify/lockify.toml";

/// Where a node's daemon listens.
pub const SOCKET: &str = "/run/lockify/lockify.sock";

/// The service that runs a node's daemon.
const UNIT: &str = "lockifyd.service";

/// Where systemd looks for it (systemd.unit(5)).
const UNITS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Something that only a machine of a cluster has. A file that cannot be examined counts as
/// present.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sign {
    /// A node's configuration.
    Configuration(PathBuf),
    /// The socket of its daemon.
    Socket(PathBuf),
    /// The service that runs its daemon.
    Unit(PathBuf),
}

impl Sign {
    /// The first one that is there.
    pub(super) fn look() -> Option<Sign> {
        Sign::below(Path::new("/"))
    }

    fn below(root: &Path) -> Option<Sign> {
        let there = |path: &str| Some(root.join(&path[1..])).filter(|path| is_there(path));
        let unit = || UNITS.iter().find_map(|dir| there(&format!("{dir}/{UNIT}")));
        (there(CONFIGURATION).map(Sign::Configuration))
            .or_else(|| there(SOCKET).map(Sign::Socket))
            .or_else(|| unit().map(Sign::Unit))
    }

    /// The path of the sign.
    pub fn path(&self) -> &Path {
        match self {
            Sign::Configuration(path) | Sign::Socket(path) | Sign::Unit(path) => path,
        }
    }
}

/// Returns true if the path exists, or may exist.
fn is_there(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sign::Configuration(path) => write!(f, "{} is a node's configuration", path.display()),
            Sign::Socket(path) => write!(f, "{} is a node's socket", path.display()),
            Sign::Unit(path) => write!(f, "{} is a node's service", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_counts_and_nothing_else_does() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Sign::below(root.path()), None);
        let put = |path: &str| {
            let path = root.path().join(&path[1..]);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        put("/etc/lockify/ca.pem");
        assert_eq!(Sign::below(root.path()), None);
        let unit = put("/lib/systemd/system/lockifyd.service");
        assert_eq!(Sign::below(root.path()), Some(Sign::Unit(unit)));
        let socket = put(SOCKET);
        assert_eq!(Sign::below(root.path()), Some(Sign::Socket(socket)));
        let file = put(CONFIGURATION);
        let sign = Sign::below(root.path()).unwrap();
        assert_eq!(sign.path(), file);
        assert!(sign.to_string().contains("lockify.toml is a node's configuration"), "{sign}");
    }

    #[test]
    fn what_leads_nowhere_is_a_sign_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        let unit = root.path().join("etc/systemd/system");
        std::fs::create_dir_all(&unit).unwrap();
        // As `systemctl mask` does.
        std::os::unix::fs::symlink("/nowhere", unit.join(UNIT)).unwrap();
        assert!(matches!(Sign::below(root.path()), Some(Sign::Unit(_))));
        let dir = root.path().join("etc/lockify");
        std::os::unix::fs::symlink("lockify", &dir).unwrap();
        // A link to itself cannot be followed.
        assert!(matches!(Sign::below(root.path()), Some(Sign::Configuration(_))));
    }
}
