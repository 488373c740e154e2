//! Which of the others are here, and how to get those that are not.

use std::env;
use std::path::{Path, PathBuf};

/// The programs that are measured beside Lockify.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "clients"), allow(dead_code, reason = "nobody can start them"))]
pub struct Programs {
    /// etcd's server.
    pub etcd: Option<PathBuf>,
    /// Redis's server.
    pub redis: Option<PathBuf>,
    /// A Java runtime and ZooKeeper's classes.
    pub zookeeper: Option<(PathBuf, PathBuf)>,
}

/// Where Debian's package has ZooKeeper's classes.
const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";

impl Programs {
    /// The installed programs; and for each missing one, its name and its package.
    pub fn find() -> (Programs, Vec<String>) {
        let mut missing = Vec::new();
        if !cfg!(feature = "clients") {
            missing.push(
                "etcd, Redis and ZooKeeper are not measured: this lockify was built without their \
                 clients. With them: apt-get install etcd-server redis-server \
                 zookeeper default-jre-headless && cargo run --release -p lockify-cli --features \
                 peers -- bench peers"
                    .to_owned(),
            );
            return (Programs::default(), missing);
        }
        let mut need = |program: &str, package: &str| {
            let found = on_path(program);
            if found.is_none() {
                missing.push(format!("{program} is missing: apt-get install {package}"));
            }
            found
        };
        let etcd = need("etcd", "etcd-server");
        let redis = need("redis-server", "redis-server");
        let java = need("java", "default-jre-headless");
        let jar = Some(PathBuf::from(ZOOKEEPER)).filter(|jar| jar.exists());
        if jar.is_none() {
            missing.push(format!("{ZOOKEEPER} is missing: apt-get install zookeeper"));
        }
        (Programs { etcd, redis, zookeeper: java.zip(jar) }, missing)
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers are in folders that only root's PATH has.
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut files = folders.map(|folder| folder.join(program));
    files.find(|file| Path::new(file).is_file())
}
