//! The reason for a wait, for the user of `lockify run`: a holder, the quorum, a fence or a recovery.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use lockify_client::{Client, ClusterStatus, ClusterView, Error, Lockspace, Name};
use lockify_core::{LockInfo, Queue};

use crate::{health, inspect, output, status};

/// After this time, a wait deserves a message, and a look at the cluster. Later ones come only with another
/// reason.
const FIRST: Duration = Duration::from_secs(5);
const LATER: Duration = Duration::from_secs(300);

/// Prints the reason of a wait on standard error, until it is dropped.
pub struct Waiting {
    /// Dropped, it ends the thread.
    _end: Sender<()>,
}

impl Waiting {
    /// A wait begins. Nobody is asked anything if it is short.
    pub fn begin(client: &Client, space: &Lockspace, name: Name) -> Waiting {
        let (_end, ended) = channel();
        let (asks, of) = (client.clone(), space.clone());
        // Without a thread, nothing is said.
        let _ = thread::Builder::new()
            .name("lockify-waits".into())
            .spawn(move || report_reasons(&asks, &of, &name, &ended));
        Waiting { _end }
    }
}

fn report_reasons(client: &Client, space: &Lockspace, name: &Name, ended: &Receiver<()>) {
    let (mut said, mut pause) = (String::new(), FIRST);
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        pause = LATER;
        let Ok(reason) = reason_of(client, space, name) else { return };
        if ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
            return;
        }
        if reason != said {
            output::print_message(&format!("waiting for \"{name}\": {reason}"));
            said = reason;
        }
    }
}

fn reason_of(client: &Client, space: &Lockspace, name: &Name) -> Result<String, Error> {
    let (view, status) = (space.who(name.as_bytes())?, client.status()?);
    Ok(reason(space.name(), &view, &status))
}

/// The reason why a lock of this name waits.
fn reason(space: &str, view: &ClusterView, cluster: &ClusterStatus) -> String {
    let locks: Vec<&LockInfo> = view.resources.iter().flat_map(|r| &r.locks).collect();
    let holders: Vec<&&LockInfo> = locks.iter().filter(|l| l.granted.is_some()).collect();
    let problems = health::problems(cluster, status::seconds_since_1970());
    let mut serious = problems.iter().filter(|p| p.kind != "certificate");
    let held = holders.first().map(|first| {
        let owner = inspect::owner(first);
        let mode = first.granted.map(|m| format!("{m:?}")).unwrap_or_default();
        match holders.len() - 1 {
            0 => format!("{owner} holds it ({mode})"),
            others => format!("{owner} holds it ({mode}), and {others} others"),
        }
    });
    match (held, serious.next()) {
        (Some(held), None) => held,
        (Some(held), Some(problem)) => format!("{held}; {}", problem.text),
        (None, Some(problem)) => format!("nobody is known to hold it; {}", problem.text),
        (None, None) => unheld(space, &locks, cluster),
    }
}

/// Why a lock is not granted that nobody holds, in a cluster that is whole.
fn unheld(space: &str, locks: &[&LockInfo], cluster: &ClusterStatus) -> String {
    let recovers = cluster
        .nodes
        .iter()
        .find(|n| n.spaces.iter().any(|s| s.name == space && s.view != 0 && !s.running));
    if let Some(node) = recovers {
        return format!("nobody holds it; a recovery runs on node {}", node.node);
    }
    let waiting = locks.iter().filter(|l| l.queue != Queue::Granted).count();
    match waiting {
        0 | 1 => "nobody holds it; it will be granted".into(),
        _ => format!("nobody holds it; {waiting} wait for it, and the first is granted next"),
    }
}

/// A name as a shell reads it.
pub fn quoted(name: &Name) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(b);
    match name.as_bytes() {
        bytes if bytes.iter().all(plain) && bytes[0] != b'-' => name.to_string(),
        bytes if bytes.iter().all(|b| (b' '..=b'~').contains(b) && *b != b'\'') => {
            format!("-- '{}'", String::from_utf8_lossy(bytes))
        }
        _ => "NAME".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::tests::node;
    use crate::inspect::tests::{lock_info, resource_info};
    use lockify_client::{Mode, NodeId};

    fn view(locks: Vec<LockInfo>) -> ClusterView {
        ClusterView { resources: vec![resource_info("a", locks)], ..ClusterView::default() }
    }

    fn whole() -> ClusterStatus {
        ClusterStatus {
            nodes: (1..=3).map(|n| node(n, 7, &[1, 2, 3])).collect(),
            silent: Vec::new(),
        }
    }

    #[test]
    fn a_holder_is_named_and_nobody_is_no_holder() {
        let waits = || lock_info(2, None, Some(Mode::EX));
        let held = view(vec![lock_info(1, Some(Mode::EX), None), waits()]);
        assert_eq!(reason("default", &held, &whole()), "node 1 client 0.1 holds it (EX)");
        let free = reason("default", &view(vec![waits()]), &whole());
        assert!(free.starts_with("nobody holds it"), "{free}");
    }

    #[test]
    fn the_quorum_and_a_fence_are_named() {
        let mut cluster = ClusterStatus { nodes: vec![node(1, 0, &[])], silent: Vec::new() };
        let text = reason("default", &view(Vec::new()), &cluster);
        assert!(text.contains("nobody") && text.contains("waits for the quorum"), "{text}");
        cluster.nodes = vec![node(1, 7, &[1, 2, 3])];
        cluster.nodes[0].unfenced = vec![NodeId(3)];
        let held = view(vec![lock_info(3, Some(Mode::EX), None)]);
        let text = reason("default", &held, &cluster);
        assert!(text.contains("holds it") && text.contains("waits for a fence"), "{text}");
    }

    #[test]
    fn a_name_in_an_advice_can_be_copied() {
        let quoted = |name: &str| super::quoted(&Name::new(name).unwrap());
        assert_eq!(quoted("backup/db-1"), "backup/db-1");
        assert_eq!(quoted("two words"), "-- 'two words'");
        assert_eq!(quoted("-x"), "-- '-x'");
        assert_eq!(quoted("\u{1b}[2J"), "NAME");
    }
}
