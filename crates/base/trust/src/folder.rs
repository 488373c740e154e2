//! The folder in which a cluster's authority is kept, and from which nodes get their files.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::authority::{Authority, Lifetime};
use crate::credentials::Credentials;
use crate::error::TrustError;
use crate::files::{self, PUBLIC, SECRET};
use crate::name::node_name;

/// The trusted authorities of nodes: certificates, the newest first.
pub const CA: &str = "ca.pem";
/// The newest one's certificate and key: what signs.
pub const CA_KEY: &str = "ca.key";
/// A node's certificate and key.
pub const IDENTITY: &str = "node.pem";
/// The cluster's name.
const CLUSTER: &str = "cluster";

/// A node's files, to be copied to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeFiles {
    /// The authorities that it trusts.
    pub ca: PathBuf,
    /// Its certificate and key.
    pub identity: PathBuf,
}

/// A folder with an authority.
#[derive(Debug)]
pub struct CaFolder {
    path: PathBuf,
    cluster: String,
}

impl CaFolder {
    /// Makes the folder, which must not be there, with a new authority in it.
    ///
    /// # Errors
    /// The folder exists or cannot be made; the name or the lifetime is out of range.
    pub fn init(path: &Path, cluster: &str, lifetime: Lifetime) -> Result<CaFolder, TrustError> {
        if cluster.contains(char::is_control) {
            let text = "a cluster's name has no control characters: choose another one";
            return Err(TrustError::Asked(text.into()));
        }
        let authority = Authority::new(cluster, lifetime)?;
        make_folder(path)?;
        files::create(&path.join(CLUSTER), PUBLIC, &format!("{cluster}\n"))?;
        files::create(&path.join(CA_KEY), SECRET, &authority.secret())?;
        files::create(&path.join(CA), PUBLIC, authority.certificate())?;
        Ok(CaFolder { path: path.to_owned(), cluster: cluster.to_owned() })
    }

    /// The folder that an earlier `init` has made.
    ///
    /// # Errors
    /// It is not there, or not whole.
    pub fn open(path: &Path) -> Result<CaFolder, TrustError> {
        let file = path.join(CLUSTER);
        let cluster = files::read_public(&file)?;
        let cluster = cluster.strip_suffix('\n').unwrap_or(&cluster).to_owned();
        node_name(&cluster, 0)
            .map_err(|e| TrustError::Content { path: file, what: e.to_string() })?;
        Ok(CaFolder { path: path.to_owned(), cluster })
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Makes a node's files, in a folder `node-N` that must not be there.
    ///
    /// # Errors
    /// The folder exists or cannot be made; the authority's files cannot be read or do not fit.
    pub fn add_node(&self, node: u32, lifetime: Lifetime) -> Result<NodeFiles, TrustError> {
        let (identity, trusted) = self.issue(node, lifetime)?;
        let folder = self.path.join(format!("node-{node}"));
        make_folder(&folder)?;
        let made = NodeFiles { ca: folder.join(CA), identity: folder.join(IDENTITY) };
        files::create(&made.identity, SECRET, &identity)?;
        files::create(&made.ca, PUBLIC, &trusted)?;
        Ok(made)
    }

    /// Makes a new key and certificate for a node that has some, and replaces its files.
    ///
    /// # Errors
    /// As [`CaFolder::add_node`]; the node has not been added.
    pub fn renew(&self, node: u32, lifetime: Lifetime) -> Result<NodeFiles, TrustError> {
        let folder = self.path.join(format!("node-{node}"));
        let files = NodeFiles { ca: folder.join(CA), identity: folder.join(IDENTITY) };
        // Nothing is made for a node that was never added, which may be a typing error.
        files::read_secret(&files.identity)?;
        let (identity, trusted) = self.issue(node, lifetime)?;
        files::replace(&files.ca, PUBLIC, &trusted)?;
        files::replace(&files.identity, SECRET, &identity)?;
        Ok(files)
    }

    /// A new authority beside the present one: certificates are signed by the new one from now on,
    /// and both are trusted by whoever gets the new `ca.pem`, which this returns.
    ///
    /// # Errors
    /// Two authorities are there already, or a file cannot be read or written.
    pub fn roll_over(&self, lifetime: Lifetime) -> Result<PathBuf, TrustError> {
        let ca = self.path.join(CA);
        let trusted = files::read_public(&ca)?;
        if trusted != self.authority()?.certificate() {
            let what = "it has two authorities already: renew the certificates of all nodes, then \
                        `lockify cluster retire`";
            return Err(TrustError::Content { path: ca, what: what.into() });
        }
        let new = Authority::new(&self.cluster, lifetime)?;
        // In this order: if only the first is done, nothing has changed but that an authority is
        // trusted whose key nobody has, and `retire` undoes that.
        files::replace(&ca, PUBLIC, &format!("{}{trusted}", new.certificate()))?;
        files::replace(&self.path.join(CA_KEY), SECRET, &new.secret())?;
        Ok(ca)
    }

    /// Ends the trust in all authorities but the one that signs: `ca.pem`, which this returns, has
    /// only that.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn retire(&self) -> Result<PathBuf, TrustError> {
        let ca = self.path.join(CA);
        files::replace(&ca, PUBLIC, self.authority()?.certificate())?;
        Ok(ca)
    }

    fn authority(&self) -> Result<Authority, TrustError> {
        let path = self.path.join(CA_KEY);
        let secret = files::read_secret(&path)?;
        Authority::load(&secret).map_err(|what| TrustError::Content { path, what })
    }

    /// A node's new identity, and what it trusts.
    fn issue(&self, node: u32, lifetime: Lifetime) -> Result<(String, String), TrustError> {
        let ca = self.path.join(CA);
        let trusted = files::read_public(&ca)?;
        let identity = self.authority()?.issue(&self.cluster, node, lifetime)?;
        // Finds an authority that the nodes would not trust, or that is not valid any more.
        let usable = Credentials::new(&self.cluster, node, &identity, &trusted);
        usable.map_err(|what| TrustError::Content { path: ca, what })?;
        Ok((identity, trusted))
    }
}

/// Makes a folder that only its owner may enter.
fn make_folder(path: &Path) -> Result<(), TrustError> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(TrustError::Exists(path.to_owned(), "name another folder, or use what is in it"))
        }
        Err(error) => Err(TrustError::File { what: "cannot make", path: path.to_owned(), error }),
    }
}
