//! The goals and the findings.

use std::fmt::Write as _;

use lockify_report::{Metric, Row, Spread};

use crate::plan::Series;
use crate::turn::Task;

/// The metric of a goal, relative to its baseline.
pub const RATIO: Metric = Metric { name: "goal_ratio", unit: "1", title: "ratio of a goal" };

/// A goal that was measured.
pub struct Goal {
    what: String,
    rounds: Vec<f64>,
    limit: f64,
    at_least: bool,
}

impl Goal {
    /// A goal to have at least, or at most, `limit`.
    pub fn new(what: impl Into<String>, rounds: Vec<f64>, limit: f64, at_least: bool) -> Goal {
        Goal { what: what.into(), rounds, limit, at_least }
    }

    /// Its row.
    pub fn row(&self) -> Row {
        Row::of("peers goals", &RATIO, &self.rounds).with("goal", self.what.clone())
    }

    /// One line: the median, the extremes of the rounds, and whether it is reached.
    pub fn line(&self) -> Option<String> {
        let Spread { min, median, max, .. } = Spread::of(&self.rounds)?;
        let reached = if self.at_least { median >= self.limit } else { median <= self.limit };
        let verdict = if reached { "pass" } else { "FALLS SHORT" };
        let sign = if self.at_least { ">=" } else { "<=" };
        let Goal { what, limit, rounds, .. } = self;
        Some(format!(
            "{verdict:11}  {what}: {median:.2} (goal {sign} {limit}; {min:.2} to {max:.2} in {} \
             rounds)",
            rounds.len()
        ))
    }
}

/// All goals whose both sides were measured.
pub fn judge(all: &[Series]) -> Vec<Goal> {
    let one = |service: &str, socket: Option<&str>, task| find(all, service, socket, 1, task);
    let three = |service: &str, task| find(all, service, None, 3, task);
    let pairs = Task::Uncontended { clients: 1 };
    let mut goals = Vec::new();
    let remote = Task::Remote;
    let mut at_least = |what: String, ours: Option<&Series>, theirs: Option<&Series>, limit| {
        if let Some((ours, theirs)) = ours.zip(theirs) {
            goals.push(Goal::new(what, ratios(&ours.per_second, &theirs.per_second), limit, true));
        }
    };
    for etcd in ["etcd", "etcd --unsafe-no-fsync"] {
        let what = |nodes, ours| format!("uncontended, {nodes}, {ours} / {etcd}");
        at_least(
            what("one node", "lockify"),
            one("lockify", None, pairs),
            one(etcd, None, pairs),
            10.0,
        );
        for ours in ["lockify", "lockify embedded"] {
            at_least(what("three nodes", ours), three(ours, pairs), three(etcd, pairs), 10.0);
            let what = format!("the same of another node's name, {ours} / {etcd}");
            at_least(what, three(ours, remote), three(etcd, remote), 10.0);
        }
    }
    let redis = one("redis", Some("unix"), pairs);
    let what = "uncontended, one node, unix sockets, lockify / redis";
    at_least(what.into(), one("lockify", None, pairs), redis, 0.9);
    let what = "uncontended, one node, lockify embedded / redis by its unix socket";
    at_least(what.into(), one("lockify embedded", None, pairs), redis, 20.0);
    for ours in ["lockify", "lockify embedded"] {
        for file in [true, false] {
            let task = Task::Create { file };
            // The one node of the same rounds: that of the group of three nodes is the last.
            let alone = all.iter().rev().find(|s| is(s, ours, None, 1, task));
            let what = format!("{}, {ours}: three nodes / one", task.name());
            at_least(what, three(ours, task), alone, 0.95);
        }
    }
    let delayed = ["lockify, delayed", "lockify embedded, delayed"];
    for ours in ["lockify", "lockify embedded"].into_iter().chain(delayed) {
        if let Some(series) = three(ours, Task::Handover) {
            let what = format!("hand-over, three nodes, {ours}, in bare TCP round trips");
            goals.push(Goal::new(what, series.round_trips(), 1.5, false));
        }
    }
    goals
}

/// The quotients of two series, round by round.
pub fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

fn is(series: &Series, service: &str, socket: Option<&str>, nodes: u32, task: Task) -> bool {
    series.service == service
        && socket.is_none_or(|s| s == series.socket)
        && series.nodes == nodes
        && series.task == task
}

fn find<'a>(
    all: &'a [Series],
    service: &str,
    socket: Option<&str>,
    nodes: u32,
    task: Task,
) -> Option<&'a Series> {
    all.iter().find(|series| is(series, service, socket, nodes, task))
}

/// The goals as text.
pub fn text(goals: &[Goal]) -> String {
    let mut text = String::new();
    for line in goals.iter().filter_map(Goal::line) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Goal;

    #[test]
    fn a_goal_is_judged_by_its_median() {
        let line = |rounds: &[f64], at_least| {
            Goal::new("x", rounds.to_vec(), 1.5, at_least).line().unwrap_or_default()
        };
        assert!(line(&[1.0, 1.6, 1.7], true).starts_with("pass"));
        assert!(line(&[1.0, 1.6, 1.7], false).starts_with("FALLS SHORT"));
        assert!(line(&[1.0, 1.4, 1.7], true).starts_with("FALLS SHORT"));
        assert_eq!(line(&[], true), "");
    }
}
