//! The measured services, their tasks and their order: every service in turn, round by round.

use std::path::Path;
use std::time::Duration;

use lockify_report::{Metric, Row, metric};

use crate::error::Error;
use crate::lockify::{Daemons, Embedded};
use crate::programs::Programs;
use crate::service::Service;
use crate::turn::{Task, Turn, bare_round_trip, measure};

/// The benchmark's name in rows.
pub const BENCH: &str = "peers";

/// Time of a hand-over relative to a bare round trip.
pub const ROUND_TRIPS: Metric =
    Metric { name: "round_trips", unit: "1", title: "bare round trips of TCP" };

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of each figure.
    pub rounds: usize,
    /// How long each service has in a round.
    pub turn: Duration,
}

/// Delay of each message in the delayed cluster, one way.
pub const DELAY: Duration = Duration::from_micros(500);

/// Services that are measured in the same rounds.
pub struct Group {
    /// The title of the group.
    pub title: &'static str,
    members: Vec<Member>,
    tasks: Vec<Task>,
}

struct Member {
    service: Box<dyn Service>,
    nodes: u32,
    /// Only creations: what other members' creations are compared with.
    creates_only: bool,
}

/// The findings of a member's rounds of a task.
pub struct Series {
    /// The member's name.
    pub service: String,
    /// Its kind of socket.
    pub socket: &'static str,
    /// Its number of nodes.
    pub nodes: u32,
    /// The task.
    pub task: Task,
    /// Operations per second of each round.
    pub per_second: Vec<f64>,
    /// The median time of each round in microseconds.
    pub median_us: Vec<f64>,
    /// A median bare round trip over TCP of each round in microseconds, delayed as its messages
    /// are; of hand-overs only.
    pub bare_us: Vec<f64>,
    durability: &'static str,
    p99_us: Vec<f64>,
}

/// The obstacles to parts of the benchmark.
pub type Failures = Vec<String>;

const TASKS: [Task; 7] = [
    Task::Uncontended { clients: 1 },
    Task::Uncontended { clients: 4 },
    Task::Relock,
    Task::Handover,
    Task::Mix { readers: 90 },
    Task::Mix { readers: 0 },
    Task::Create { file: true },
];

impl Group {
    /// One node of each service.
    pub fn one(lockify: &Path, programs: &Programs, folder: &Path) -> (Group, Failures) {
        let mut started = Started::default();
        started.add(1, Daemons::start(lockify, folder, 1, Duration::ZERO));
        started.add(1, Embedded::start(1, Duration::ZERO));
        others(programs, folder, 1, &mut started);
        started.group("one node", TASKS.to_vec())
    }

    /// Three nodes of each service that has nodes, and for creations Lockify's one.
    pub fn three(lockify: &Path, programs: &Programs, folder: &Path) -> (Group, Failures) {
        let mut started = Started::default();
        started.add(3, Daemons::start(lockify, folder, 3, Duration::ZERO));
        started.add(3, Embedded::start(3, Duration::ZERO));
        others(programs, folder, 3, &mut started);
        started.add(1, Daemons::start(lockify, folder, 1, Duration::ZERO));
        started.add(1, Embedded::start(1, Duration::ZERO));
        for member in &mut started.members {
            member.creates_only = member.nodes == 1;
        }
        started.group(
            "three nodes",
            TASKS.into_iter().chain([Task::Remote, Task::Create { file: false }]).collect(),
        )
    }

    /// Three nodes of Lockify whose messages are delayed by Lockify itself.
    pub fn delayed(lockify: &Path, folder: &Path) -> (Group, Failures) {
        let mut started = Started::default();
        started.add(3, Daemons::start(lockify, folder, 3, DELAY));
        started.add(3, Embedded::start(3, DELAY));
        started.group("three nodes, each message delayed", vec![Task::Handover])
    }

    /// How many turns a round of all tasks has.
    pub fn turns(&self) -> usize {
        self.tasks.iter().map(|task| self.members.iter().filter(|m| m.does(*task)).count()).sum()
    }

    /// Measures all tasks. A member that fails, or fails again after its recovery, is left out from then on.
    pub fn measure(
        mut self,
        effort: Effort,
        folder: &Path,
        failures: &mut Failures,
        done: &dyn Fn(),
    ) -> Vec<Series> {
        let mut all = Vec::new();
        let mut number = 0;
        for task in std::mem::take(&mut self.tasks) {
            let mut series: Vec<Series> = self.members.iter().map(|m| m.series(task)).collect();
            for round in 0..effort.rounds {
                for place in 0..self.members.len() {
                    // Everybody comes first, last and after everybody else.
                    let i = (place + round) % self.members.len();
                    if !self.members[i].does(task) || series[i].failed() {
                        continue;
                    }
                    number += 1;
                    let mut measured = self.members[i].turn(task, effort, number, folder);
                    let recovery = self.members[i].service.recovery();
                    if measured.is_err() && !recovery.is_zero() {
                        std::thread::sleep(recovery);
                        number += 1;
                        measured = self.members[i].turn(task, effort, number, folder);
                    }
                    match measured {
                        Ok((turn, bare)) => series[i].add(&turn, bare),
                        Err(e) => {
                            failures.push(format!("{}, {}: {e}", self.title, task.name()));
                            series[i].fail();
                        }
                    }
                    done();
                }
            }
            let failed: Vec<bool> = series.iter().map(Series::failed).collect();
            let mut failed = failed.into_iter();
            self.members.retain(|_| !failed.next().unwrap_or(false));
            all.extend(series.into_iter().filter(|s| !s.failed() && !s.per_second.is_empty()));
        }
        all
    }
}

/// The started members of a group.
#[derive(Default)]
struct Started {
    members: Vec<Member>,
    failures: Failures,
}

impl Started {
    fn add(&mut self, nodes: u32, service: Result<impl Service + 'static, Error>) {
        match service {
            Ok(service) => {
                let service = Box::new(service);
                self.members.push(Member { service, nodes, creates_only: false });
            }
            Err(e) => self.failures.push(e.to_string()),
        }
    }

    fn group(self, title: &'static str, tasks: Vec<Task>) -> (Group, Failures) {
        (Group { title, members: self.members, tasks }, self.failures)
    }
}

/// The services that are not ours.
#[cfg(feature = "clients")]
fn others(programs: &Programs, folder: &Path, nodes: u32, started: &mut Started) {
    use crate::{etcd::Etcd, redis::Redis, zookeeper::ZooKeeper};
    let count = nodes as usize;
    if let Some(etcd) = &programs.etcd {
        started.add(nodes, Etcd::start(etcd, folder, count, true));
        started.add(nodes, Etcd::start(etcd, folder, count, false));
    }
    if let Some(redis) = programs.redis.as_ref().filter(|_| nodes == 1) {
        match Redis::start(redis, folder) {
            Ok(both) => both.into_iter().for_each(|one| started.add(nodes, Ok(one))),
            Err(e) => started.failures.push(e.to_string()),
        }
    }
    if let Some((java, jar)) = &programs.zookeeper {
        started.add(nodes, ZooKeeper::start(java, jar, folder, count));
    }
}

#[cfg(not(feature = "clients"))]
fn others(_: &Programs, _: &Path, _: u32, _: &mut Started) {}

impl Member {
    fn does(&self, task: Task) -> bool {
        !self.creates_only || matches!(task, Task::Create { .. })
    }

    fn series(&self, task: Task) -> Series {
        Series {
            service: self.service.name().to_owned(),
            socket: self.service.socket(),
            nodes: self.nodes,
            task,
            per_second: Vec::new(),
            median_us: Vec::new(),
            bare_us: Vec::new(),
            durability: self.service.durability(),
            p99_us: Vec::new(),
        }
    }

    /// A turn, and before that of a hand-over, bare round trips.
    fn turn(
        &self,
        task: Task,
        effort: Effort,
        number: usize,
        folder: &Path,
    ) -> Result<(Turn, Option<f64>), Error> {
        let bare = match task {
            Task::Handover => Some(bare_round_trip(true, effort.turn / 3)?),
            _ => None,
        };
        let turn = measure(self.service.as_ref(), task, effort.turn, number, folder)?;
        Ok((turn, bare.map(|us| us + 2.0 * self.service.delay().as_secs_f64() * 1e6)))
    }
}

impl Series {
    fn add(&mut self, turn: &Turn, bare_us: Option<f64>) {
        let us = |q| turn.times.value_at_quantile(q) as f64 / 1e3;
        self.per_second.push(turn.per_second);
        self.median_us.push(us(0.5));
        self.p99_us.push(us(0.99));
        self.bare_us.extend(bare_us);
    }

    /// A series that failed has no figures: part of them would look like all.
    fn fail(&mut self) {
        self.per_second = vec![f64::NAN];
    }

    fn failed(&self) -> bool {
        self.per_second.iter().any(|n| n.is_nan())
    }

    /// Hand-overs in bare round trips, of each round.
    pub fn round_trips(&self) -> Vec<f64> {
        self.median_us.iter().zip(&self.bare_us).map(|(time, bare)| time / bare).collect()
    }

    /// The result rows.
    pub fn rows(&self) -> Vec<Row> {
        let row = |metric, rounds: &[f64]| {
            Row::of(BENCH, metric, rounds)
                .with("nodes", self.nodes)
                .with("task", self.task.name())
                .with("service", self.service.clone())
                .with("socket", self.socket)
        };
        let mut rows = vec![
            row(&metric::LOCKS_PER_S, &self.per_second),
            row(&metric::LATENCY_US, &self.median_us).with("percentile", 50),
            row(&metric::LATENCY_US, &self.p99_us).with("percentile", 99),
        ];
        if !self.bare_us.is_empty() {
            rows.push(row(&ROUND_TRIPS, &self.round_trips()));
        }
        rows
    }

    /// The events that its grants survive.
    pub fn durability(&self) -> String {
        format!("{} ({}): {}", self.service, nodes(self.nodes), self.durability)
    }
}

fn nodes(count: u32) -> String {
    if count == 1 { "one node".into() } else { format!("{count} nodes") }
}
