//! `lockify doctor`: why a lock waits.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use lockify_client::{ClusterStatus, ClusterView, Name, NodeId, ResourceInfo};
use lockify_core::waits::{self, Edge, LockKey};
use lockify_core::{LockInfo, Queue, Wait};
use serde::Serialize;

use crate::connect::{Connection, Missing, failed};
use crate::exit::{Code, Ended, OrFail as _};
use crate::health;
use crate::inspect::{self, Lock, Owner, SCHEMA};
use crate::output::print;
use crate::status;

/// Say why a lock waits, and what to do about it
///
/// Follows the chain of holders across nodes: the locks that block it, and the locks that block
/// those. Names deadlocks, dead nodes and the reason why their recovery waits, nodes without
/// quorum, recoveries under way, and releases that wait for unsettled claims. Without a name, of
/// all locks of the lockspace.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// The lock's name
    name: Option<String>,
}

/// How far a chain of holders is followed.
const DEEPEST: usize = 16;
/// Resources for which somebody waits that are looked at.
const MOST_WAITED_FOR: usize = 10_000;
/// Links of chains that are told of.
const MOST_LINKS: usize = 200;

/// The doctor's findings.
#[derive(Debug, Serialize)]
struct Diagnosis {
    schema: u32,
    /// The lock asked for.
    name: Option<String>,
    /// The problems, the most serious first.
    findings: Vec<Finding>,
    /// The waits, and why each of them does.
    waits: Vec<Waiting>,
    /// Waits and links that were left out.
    omitted: u64,
}

/// Something that keeps locks from being granted.
#[derive(Debug, Serialize)]
struct Finding {
    /// Which of them: `no_quorum`, `no_answer`, `out`, `unfenced`, `recovery`, `deadlock` or `claims`.
    kind: &'static str,
    /// The nodes that it is about.
    nodes: Vec<u32>,
    /// The problem, and its remedy.
    text: String,
    /// The waits of a deadlock.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    circle: Vec<Link>,
}

/// A lock that waits.
#[derive(Debug, Serialize)]
struct Waiting {
    resource: String,
    #[serde(flatten)]
    lock: Lock,
    /// A precondition of any grant: `quorum`, of the waiter's node, or `fence`, of a node that holds
    /// or masters a name; null if neither.
    cluster: Option<&'static str>,
    /// The blockers, the blockers of those, and so on.
    chain: Vec<Link>,
}

/// One waits for another.
#[derive(Clone, Debug, Serialize)]
struct Link {
    /// How many links away from the lock asked about.
    depth: usize,
    resource: String,
    waiter: Owner,
    wants: String,
    /// Since when, in seconds before now.
    for_s: f64,
    blocker: Owner,
    /// The mode held; null: it is only before it in the queue.
    holds: Option<String>,
    /// `silent`: the blocker's node does not answer; `claims`: the blocker's release waits for
    /// unsettled claims of its node; `releasing`: for its master or a recovery; `waits`: the blocker
    /// waits itself; `repeated`: followed elsewhere; `holds`: it waits for nothing here.
    state: &'static str,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Ended {
    let client = args.connection.client(Missing::Fail).map_err(failed)?;
    let space = client.lockspace(&args.connection.space).map_err(failed)?;
    let name = args.name.as_ref().map(Name::new).transpose().or_fail(Code::Unreadable)?;
    // A lock that nobody waits for blocks nobody.
    let mut view = space.waited_for(MOST_WAITED_FOR).map_err(failed)?;
    if let Some(name) = name.filter(|name| !view.resources.iter().any(|r| r.name == *name)) {
        view.resources.extend(space.who(name.as_bytes()).map_err(failed)?.resources);
    }
    let status = client.status().map_err(failed)?;
    let mut circles = waits::cycles(&view.resources);
    if !circles.is_empty() {
        // Each node was asked at a time of its own: only a lasting state counts.
        let again = space.waited_for(MOST_WAITED_FOR).map_err(failed)?;
        circles.retain(|c| c.edges.iter().all(|e| same(&view, e) == same(&again, e)));
    }
    let circles: Vec<Vec<Edge>> = circles.into_iter().map(|c| c.edges).collect();
    let now = SystemTime::now();
    let found = diagnose(name.as_ref(), &args.connection.space, &status, &view, &circles, now);
    if args.json {
        args.connection.print_json(&found)?
    } else {
        print(&(args.connection.headline()? + &text(&found)))?
    }
    Ok(ExitCode::SUCCESS)
}

/// A wait's two locks, with the numbers of their operations; `None` if there is no such wait.
fn same(view: &ClusterView, edge: &Edge) -> Option<[(LockKey, u32); 2]> {
    let r = view.resources.iter().find(|r| r.name == edge.name)?;
    let waiter = r.locks.iter().find(|l| l.key() == edge.waiter)?;
    let blocker = r.blockers(waiter).find(|l| l.key() == edge.blocker)?;
    Some([(waiter.key(), waiter.op), (blocker.key(), blocker.op)])
}

struct Doctor<'a> {
    view: &'a ClusterView,
    status: &'a ClusterStatus,
    now: SystemTime,
    followed: BTreeSet<LockKey>,
    links: usize,
    omitted: u64,
}

fn diagnose(
    name: Option<&Name>,
    space: &str,
    status: &ClusterStatus,
    view: &ClusterView,
    circles: &[Vec<Edge>],
    now: SystemTime,
) -> Diagnosis {
    let followed = BTreeSet::new();
    let mut doctor = Doctor { view, status, now, followed, links: 0, omitted: view.omitted };
    let mut waits = Vec::new();
    for r in view.resources.iter().filter(|r| name.is_none_or(|name| r.name == *name)) {
        for l in r.locks.iter().filter(|l| l.queue != Queue::Granted) {
            if waits.len() >= MOST_LINKS {
                doctor.omitted += 1;
                continue;
            }
            doctor.followed.clear();
            let mut chain = Vec::new();
            doctor.follow(r, l, 1, &mut chain);
            let lock = inspect::lock(l, now, r.blockers(l).map(inspect::owner).collect());
            let cluster = doctor.waits_for_cluster(r, l, &chain);
            waits.push(Waiting { resource: r.name.to_string(), lock, cluster, chain });
        }
    }
    let mut findings = cluster(space, status);
    findings.extend(circles.iter().map(|edges| doctor.deadlock(edges, space)));
    findings.extend(doctor.claims(space));
    let name = name.map(ToString::to_string);
    Diagnosis { schema: SCHEMA, name, findings, waits, omitted: doctor.omitted }
}

/// The problems of the nodes.
fn cluster(space: &str, status: &ClusterStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |kind, nodes: Vec<u32>, text: String| {
        if !findings.iter().any(|f: &Finding| (f.kind, &f.nodes, &f.text) == (kind, &nodes, &text))
        {
            findings.push(Finding { kind, nodes, text, circle: Vec::new() });
        }
    };
    let now = status::seconds_since_1970();
    // No lock waits for a certificate that still has some days.
    let problems = health::problems(status, now).into_iter().filter(|p| p.kind != "certificate");
    problems.for_each(|p| find(p.kind, p.nodes, p.text));
    for n in &status.nodes {
        for s in n.spaces.iter().filter(|s| s.name == space && !s.running && n.view != 0) {
            let text = match &s.recovery {
                Some(r) => format!(
                    "node {} recovers view {}, step {}{}: requests wait until it is done",
                    n.node,
                    s.view,
                    status::step(r),
                    missing(&r.missing)
                ),
                None => format!(
                    "node {} is no member of lockspace {space}: it joins when the nodes have agreed \
                     on a view",
                    n.node
                ),
            };
            find("recovery", vec![n.node.0], text);
        }
    }
    findings
}

fn missing(nodes: &[NodeId]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    format!(", and waits for node {}", nodes.join(", "))
}

impl Doctor<'_> {
    /// The locks that block a lock, and the locks that block those.
    fn follow(&mut self, r: &ResourceInfo, waiter: &LockInfo, depth: usize, chain: &mut Vec<Link>) {
        self.followed.insert(waiter.key());
        let view = self.view;
        for blocker in r.blockers(waiter) {
            if self.links >= MOST_LINKS {
                self.omitted += 1;
                continue;
            }
            self.links += 1;
            let next = self.waits_of(blocker);
            let state = match blocker.wait {
                _ if self.status.silent.contains(&blocker.node) => "silent",
                Wait::Claims => "claims",
                Wait::Recovery | Wait::Answer(_) if blocker.granted.is_some() => "releasing",
                _ if next.is_empty() => "holds",
                _ if next.iter().all(|(_, l)| self.followed.contains(&l.key())) => "repeated",
                _ => "waits",
            };
            chain.push(self.link(r, waiter, blocker, depth, state));
            if depth >= DEEPEST {
                continue;
            }
            for (at, key) in next.iter().map(|(r, l)| (r.name, l.key())).collect::<Vec<_>>() {
                let found = view.resources.iter().find(|r| r.name == at);
                let lock = found.and_then(|r| r.locks.iter().find(|l| l.key() == key));
                if let (Some(r), Some(l)) = (found, lock)
                    && !self.followed.contains(&key)
                {
                    self.follow(r, l, depth + 1, chain);
                }
            }
        }
    }

    /// The precondition of a grant that concerns the cluster as a whole.
    fn waits_for_cluster(
        &self,
        r: &ResourceInfo,
        waiter: &LockInfo,
        chain: &[Link],
    ) -> Option<&'static str> {
        let mut of = self.status.nodes.iter().filter(|n| n.node == waiter.node);
        if of.any(|n| !health::has_quorum(n)) {
            return Some("quorum");
        }
        let gone: BTreeSet<NodeId> =
            self.status.nodes.iter().flat_map(|n| n.unfenced.iter().copied()).collect();
        let holds = chain.iter().any(|link| gone.contains(&NodeId(link.blocker.node)));
        // Without a master, the name may be that of a node that is gone.
        let masters = r.master.map_or(waiter.wait != Wait::Queue, |m| gone.contains(&m));
        (!gone.is_empty() && (holds || masters)).then_some("fence")
    }

    /// The locks that a lock's party waits for.
    fn waits_of(&self, lock: &LockInfo) -> Vec<(&ResourceInfo, &LockInfo)> {
        let Some(party) = lock.party() else { return Vec::new() };
        let waits = |l: &&LockInfo| l.queue != Queue::Granted && l.party() == Some(party);
        let all = self.view.resources.iter();
        all.flat_map(|r| r.locks.iter().filter(waits).map(move |l| (r, l))).collect()
    }

    fn link(
        &self,
        r: &ResourceInfo,
        waiter: &LockInfo,
        blocker: &LockInfo,
        depth: usize,
        state: &'static str,
    ) -> Link {
        let ahead = blocker.granted.zip(waiter.requested).is_none_or(|(g, w)| g.compatible(w));
        Link {
            depth,
            resource: r.name.to_string(),
            waiter: inspect::owner(waiter),
            wants: waiter.requested.map(|m| format!("{m:?}")).unwrap_or_default(),
            for_s: inspect::lock(waiter, self.now, Vec::new()).for_s,
            blocker: inspect::owner(blocker),
            holds: blocker.granted.filter(|_| !ahead).map(|m| format!("{m:?}")),
            state,
        }
    }

    fn deadlock(&self, edges: &[Edge], space: &str) -> Finding {
        let link = |(i, e): (usize, &Edge)| {
            let r = self.view.resources.iter().find(|r| r.name == e.name)?;
            let lock = |key: LockKey| r.locks.iter().find(|l| l.key() == key);
            Some(self.link(r, lock(e.waiter)?, lock(e.blocker)?, i + 1, "waits"))
        };
        let circle: Vec<Link> = edges.iter().enumerate().filter_map(link).collect();
        let nodes: BTreeSet<u32> = edges.iter().map(|e| e.waiter.0.0).collect();
        let spaces = self.status.nodes.iter().flat_map(|n| &n.spaces);
        let searched = spaces.filter(|s| s.name == space).find_map(|s| s.deadlock_after);
        let what = match searched {
            Some(_) => "the youngest wait will be ended with EDEADLK",
            None => {
                "nobody will end it: stop one of these processes, and set deadlock_after for the \
                 lockspace, or a time-out for the requests"
            }
        };
        let text = format!("deadlock: {} wait for each other in a circle; {what}", circle.len());
        Finding { kind: "deadlock", nodes: nodes.into_iter().collect(), text, circle }
    }

    /// Releases that wait for claims.
    fn claims(&self, space: &str) -> Vec<Finding> {
        let all = self.view.resources.iter().flat_map(|r| &r.locks);
        let nodes: BTreeSet<NodeId> =
            all.filter(|l| l.wait == Wait::Claims).map(|l| l.node).collect();
        let finding = |node: NodeId| {
            let of = self.status.nodes.iter().filter(|n| n.node == node).flat_map(|n| &n.spaces);
            let open: u64 = of.filter(|s| s.name == space).map(|s| s.unsettled_claims).sum();
            let text = format!(
                "node {node} has {open} unsettled claims of new names, and what its clients \
                 release waits for them: they settle when their directory nodes answer"
            );
            Finding { kind: "claims", nodes: vec![node.0], text, circle: Vec::new() }
        };
        nodes.into_iter().map(finding).collect()
    }
}

fn text(d: &Diagnosis) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail, here and below.
    for finding in &d.findings {
        let _ = writeln!(text, "! {}", finding.text);
        for link in &finding.circle {
            let _ = writeln!(text, "    {}", link.text());
        }
    }
    let what = d.name.as_deref().unwrap_or("the lockspace");
    if d.waits.is_empty() {
        let _ = writeln!(text, "{what}: nobody waits");
    }
    for waiting in &d.waits {
        let mode = waiting.lock.requested.as_deref().unwrap_or("?");
        let (whose, age) = (waiting.lock.whose(), waiting.lock.age());
        let _ = writeln!(text, "{}: {whose} waits for {mode} ({age}){}", waiting.resource, {
            match waiting.lock.wait {
                _ if waiting.cluster == Some("quorum") => ": its node waits for the quorum",
                _ if waiting.cluster == Some("fence") => ": waits for a fence, see above",
                "master" => ": its master is being looked for",
                "answer" => ": its master has not answered",
                "recovery" => ": a recovery runs",
                "claims" => ": claims of its node are not settled",
                "merge" => ": its lock is being merged at another master",
                _ => "",
            }
        });
        for link in &waiting.chain {
            let _ = writeln!(text, "{}{}", "  ".repeat(link.depth), link.text());
        }
    }
    if d.omitted > 0 {
        let _ = writeln!(text, "({} more left out)", d.omitted);
    }
    text
}

impl Link {
    fn text(&self) -> String {
        let Link { resource, waiter, wants, blocker, .. } = self;
        let held = match &self.holds {
            Some(mode) => format!("holds {mode}"),
            None => "is before it in the queue".into(),
        };
        let state = match self.state {
            "silent" => ", and its node does not answer",
            "claims" => ", and gives it up when its node's claims are settled",
            "releasing" => ", and is giving it up",
            "repeated" => ", and waits as said above",
            "waits" => ", and waits itself",
            _ => "",
        };
        format!("{resource}: {waiter} wants {wants}, {blocker} {held}{state}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::{lock_info, resource_info};
    use lockify_client::{ClientId, Mode};
    use std::time::Duration;

    fn lock(node: u32, id: u64, granted: Option<Mode>, requested: Option<Mode>) -> LockInfo {
        LockInfo {
            node: NodeId(node),
            client: Some(ClientId(u64::from(node) << 32 | 1)),
            since: id * 1_000_000_000,
            ..lock_info(id, granted, requested)
        }
    }

    fn view(resources: Vec<(&str, Vec<LockInfo>)>) -> ClusterView {
        let resources = resources.into_iter().map(|(name, locks)| resource_info(name, locks));
        ClusterView { resources: resources.collect(), ..ClusterView::default() }
    }

    fn of(view: &ClusterView, status: &ClusterStatus) -> Diagnosis {
        let circles: Vec<_> = waits::cycles(&view.resources).into_iter().map(|c| c.edges).collect();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10);
        let name = view.resources[0].name;
        diagnose(Some(&name), "default", status, view, &circles, now)
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let view = view(vec![
            ("a", vec![lock(1, 1, Some(Mode::EX), None), lock(2, 2, None, Some(Mode::PR))]),
            ("b", vec![lock(3, 3, Some(Mode::EX), None), lock(1, 4, None, Some(Mode::EX))]),
        ]);
        let status = ClusterStatus { silent: vec![NodeId(3)], ..ClusterStatus::default() };
        let found = of(&view, &status);
        let chain: Vec<_> =
            found.waits[0].chain.iter().map(|l| (l.depth, l.blocker.node, l.state)).collect();
        assert_eq!(chain, [(1, 1, "waits"), (2, 3, "silent")]);
        assert_eq!(found.findings[0].kind, "no_answer");
    }

    #[test]
    fn who_waits_for_the_quorum_or_for_a_fence_is_told_so() {
        let view = view(vec![(
            "a",
            vec![lock(3, 1, Some(Mode::EX), None), lock(2, 2, None, Some(Mode::PR))],
        )]);
        let of_node = |n| crate::health::tests::node(n, 7, &[1, 2]);
        let mut status = ClusterStatus { nodes: vec![of_node(1), of_node(2)], silent: Vec::new() };
        let said =
            |status: &ClusterStatus| (of(&view, status).waits[0].cluster, text(&of(&view, status)));
        assert_eq!(said(&status).0, None);
        status.nodes[0].unfenced = vec![NodeId(3)];
        let (cluster, fence) = said(&status);
        assert!(cluster == Some("fence") && fence.contains(": waits for a fence"), "{fence}");
        status.nodes[1].view = 0;
        let (cluster, quorum) = said(&status);
        assert!(cluster == Some("quorum") && quorum.contains("waits for the quorum"), "{quorum}");
    }

    #[test]
    fn the_json_of_doctor_stays_as_it_is() {
        let view = view(vec![
            ("a", vec![lock(1, 1, Some(Mode::EX), None), lock(2, 4, None, Some(Mode::PR))]),
            ("b", vec![lock(2, 2, Some(Mode::EX), None), lock(1, 3, None, Some(Mode::EX))]),
        ]);
        let found = of(&view, &ClusterStatus::default());
        let golden = include_str!("../tests/golden/doctor.json");
        crate::output::assert_golden("doctor", &found, golden);
        let text = text(&found);
        assert!(text.contains("deadlock: 2 wait for each other"), "{text}");
        assert!(text.contains("waits as said above"), "{text}");
    }
}
