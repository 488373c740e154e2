//! `lockify kernel status`: the claims of each lockspace that this node is in.
//!
//! The kernel's lock manager tells of its lockspaces in sysfs, of their members in configfs, and of claims in debugfs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::metrics;
use crate::exit::{Code, Failure, OrFail as _};
use crate::output::{columns, print, print_json};

const SCHEMA: u32 = 1;

/// Show the claims of this machine's kernel, for each lockspace
///
/// A claim is pending until its directory node has answered. Releases that others would see wait for that at the barrier. Ends with 1 if
/// a lockspace has the claim switched on, and makes none because some member does not know claims.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Print metrics in the text format of OpenMetrics, for a textfile collector of Prometheus
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
    /// Where the kernel's files are
    #[arg(long, value_name = "DIR", default_value = "/sys", hide = true)]
    sys: PathBuf,
    /// Only this lockspace
    lockspace: Option<String>,
}

/// What this node's kernel tells.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    schema: u32,
    /// This node's number in the cluster, if the cluster has been configured.
    pub node: Option<u32>,
    pub lockspaces: Vec<Space>,
}

#[derive(Debug, Serialize)]
pub(super) struct Space {
    pub name: String,
    pub members: Vec<u32>,
    /// off, strict or on; none if the kernel's lock manager does not have the claim.
    pub claim: Option<String>,
    /// All members know claims, so that this node makes some.
    pub agreed: Option<bool>,
    /// By the names that the kernel gives them (kernel/README.md, "Counters").
    pub counters: BTreeMap<String, u64>,
}

impl Space {
    /// It is switched on to no effect.
    fn is_held_back(&self) -> bool {
        self.agreed == Some(false) && self.claim.as_deref().is_some_and(|mode| mode != "off")
    }

    fn counter(&self, name: &str) -> String {
        self.counters.get(name).map_or("-".into(), u64::to_string)
    }

    fn longest_wait(&self) -> String {
        let us = self.counters.get("barrier_wait_max_us");
        us.map_or("-".into(), |us| {
            humantime::format_duration(Duration::from_micros(*us)).to_string()
        })
    }
}

pub(super) fn run(args: &Args) -> Result<Code, Failure> {
    let mut status = look(&args.sys)?;
    if let Some(wanted) = &args.lockspace {
        status.lockspaces.retain(|space| space.name == *wanted);
        if status.lockspaces.is_empty() {
            let what =
                format!("this node is in no lockspace {wanted}; `lockify kernel status` lists all");
            return Err(Failure::new(Code::Failed, what));
        }
    }
    if args.json {
        print_json(&status)?;
    } else if args.metrics {
        print(&metrics::text(&status).or_fail(Code::Failed)?)?;
    } else {
        print(&table(&status))?;
    }
    let held_back = status.lockspaces.iter().any(Space::is_held_back);
    Ok(if held_back { Code::Violated } else { Code::Success })
}

/// Reads what the kernel tells below this folder.
fn look(sys: &Path) -> Result<Status, Failure> {
    let spaces = sys.join("kernel/dlm");
    let mut names = names(&spaces).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let what = "this kernel's lock manager is not loaded: mount a GFS2 or OCFS2 file system, or run `modprobe dlm`";
            Failure::new(Code::Failed, format!("{} does not exist; {what}", spaces.display()))
        }
        _ => unreadable(&spaces, &e),
    })?;
    names.sort();
    let lockspaces = names.into_iter().map(|name| space(sys, name)).collect::<Result<_, _>>()?;
    Ok(Status { schema: SCHEMA, node: this_node(sys), lockspaces })
}

fn space(sys: &Path, name: String) -> Result<Space, Failure> {
    let members = members(sys, &name);
    let switch = sys.join("kernel/dlm").join(&name).join("claim");
    let mode = match fs::read_to_string(&switch) {
        Ok(mode) => mode.trim().to_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Ok(Space {
                name,
                members,
                claim: None,
                agreed: None,
                counters: BTreeMap::new(),
            });
        }
        Err(e) => return Err(unreadable(&switch, &e)),
    };
    let file = sys.join("kernel/debug/dlm").join(format!("{name}_claim"));
    let text = fs::read_to_string(&file).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let what = "mount debugfs (`mount -t debugfs debugfs /sys/kernel/debug`), or the lockspace has just ended";
            Failure::new(Code::Failed, format!("{} does not exist; {what}", file.display()))
        }
        _ => unreadable(&file, &e),
    })?;
    let mut counters = counters(&text).map_err(|line| {
        let what = format!("{}: {line:?} is not a name and a number", file.display());
        Failure::new(
            Code::Failed,
            format!("{what}; use a lockify of the same release as the kernel's modules"),
        )
    })?;
    let agreed = counters.remove("agreed").map(|agreed| agreed != 0);
    Ok(Space { name, members, claim: Some(mode), agreed, counters })
}

/// The names and numbers of a lockspace's file, or the line that has none.
fn counters(text: &str) -> Result<BTreeMap<String, u64>, &str> {
    let of_line = |line| {
        let (name, number): (&str, &str) = str::split_once(line, ' ').ok_or(line)?;
        Ok((name.to_owned(), number.parse().map_err(|_| line)?))
    };
    text.lines().map(of_line).collect()
}

/// The folders in a folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

fn cluster(sys: &Path) -> PathBuf {
    sys.join("kernel/config/dlm/cluster")
}

/// `dlm_controld` writes them; a lockspace without it has none there.
fn members(sys: &Path, space: &str) -> Vec<u32> {
    let nodes = names(&cluster(sys).join("spaces").join(space).join("nodes"));
    let mut members: Vec<u32> =
        nodes.unwrap_or_default().iter().filter_map(|name| name.parse().ok()).collect();
    members.sort_unstable();
    members
}

fn this_node(sys: &Path) -> Option<u32> {
    let nodes = cluster(sys).join("comms");
    let is_local = |name: &String| {
        fs::read_to_string(nodes.join(name).join("local")).is_ok_and(|text| text.trim() == "1")
    };
    names(&nodes).ok()?.into_iter().find(is_local)?.parse().ok()
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => "; run this as root",
        _ => "",
    };
    Failure::new(Code::Failed, format!("cannot read {}: {error}{hint}", path.display()))
}

fn table(status: &Status) -> String {
    let heading = [
        "LOCKSPACE",
        "MEMBERS",
        "CLAIM",
        "AGREED",
        "PENDING",
        "REFUSED",
        "MERGED",
        "RECOVERED",
        "AT BARRIER",
        "WAITED",
        "LONGEST",
    ];
    let row = |space: &Space| {
        let members: Vec<String> = space.members.iter().map(u32::to_string).collect();
        let agreed = space.agreed.map_or("-", |agreed| if agreed { "yes" } else { "no" });
        let counted = ["pending", "refusals", "merges", "recovered", "parked", "barrier_waits"];
        let mut row = vec![
            space.name.clone(),
            if members.is_empty() { "-".into() } else { members.join(",") },
            space.claim.clone().unwrap_or_else(|| "not in this kernel".into()),
            agreed.to_owned(),
        ];
        row.extend(counted.map(|name| space.counter(name)));
        row.push(space.longest_wait());
        row
    };
    let rows: Vec<Vec<String>> = status.lockspaces.iter().map(row).collect();
    let node = status.node.map_or(String::new(), |node| format!("node {node}\n"));
    let mut text = node + &columns(&heading, &rows);
    for space in status.lockspaces.iter().filter(|space| space.is_held_back()) {
        text += &format!(
            "{}: no claims are made, since a member does not know them: see kernel/INSTALL.md, \"When something is wrong\"\n",
            space.name
        );
    }
    text
}

#[cfg(test)]
mod tests;
