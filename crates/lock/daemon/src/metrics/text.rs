//! The metrics' names and values, in the text format of OpenMetrics; `docs/observing.md` lists them.

use std::collections::BTreeMap;
use std::fmt::Error;

use lockify_core::NodeId;
use lockify_host::meter::{BOUNDS, Durations};
use lockify_node::SpaceStatus;
use lockify_node::wire::{SPOKEN, Versions};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Snapshot;

/// The text that a reader gets.
pub(super) fn encode(shards: usize, snapshots: Vec<Snapshot>) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshots { shards, snapshots }));
    let mut text = String::new();
    encode_text(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshots {
    shards: usize,
    snapshots: Vec<Snapshot>,
}

/// A label's name and value.
type Label = (&'static str, String);

/// Values of one metric, with their labels.
type Values = Vec<(Vec<Label>, u64)>;

/// One of a lockspace's figures.
type Figure<'a> = &'a dyn Fn(&SpaceStatus) -> u64;

struct Encoder<'a>(DescriptorEncoder<'a>);

impl Encoder<'_> {
    fn counter(&mut self, name: &str, help: &str, values: Values) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            labelled_with(&mut metric, &labels, |m| {
                m.encode_counter::<NoLabelSet, _, u64>(&value, None)
            })?;
        }
        Ok(())
    }

    /// A counter of nanoseconds, told in seconds.
    fn seconds(&mut self, name: &str, help: &str, values: Values) -> Result<(), Error> {
        let unit = Some(&Unit::Seconds);
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Counter)?;
        for (labels, value) in values {
            let value = value as f64 / 1e9;
            labelled_with(&mut metric, &labels, |m| {
                m.encode_counter::<NoLabelSet, _, u64>(&value, None)
            })?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, values: Values) -> Result<(), Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            labelled_with(&mut metric, &labels, |m| m.encode_gauge(&value))?;
        }
        Ok(())
    }

    /// A time in nanoseconds; the unit is added to the name.
    fn time(&mut self, name: &str, help: &str, nanoseconds: u64) -> Result<(), Error> {
        let unit = Some(&Unit::Seconds);
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        metric.encode_gauge(&(nanoseconds as f64 / 1e9))
    }

    fn durations(&mut self, name: &str, help: &str, all: &Durations) -> Result<(), Error> {
        let unit = Some(&Unit::Seconds);
        let mut metric = self.0.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        let bounds = BOUNDS.iter().map(|&b| b as f64 / 1e9).chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds.zip(all.counts).collect();
        metric.encode_histogram::<NoLabelSet>(all.sum as f64 / 1e9, all.count(), &buckets, None)
    }
}

/// Encodes a value with its labels; without any, the encoder would write an empty list of them.
fn labelled_with(
    metric: &mut MetricEncoder<'_>,
    labels: &Vec<Label>,
    encode: impl FnOnce(&mut MetricEncoder<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    if labels.is_empty() { encode(metric) } else { encode(&mut metric.encode_family(labels)?) }
}

impl Collector for Snapshots {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut e = Encoder(encoder);
        let shards = vec![
            (vec![("state", "answered".to_owned())], self.snapshots.len() as u64),
            (vec![("state", "silent".to_owned())], (self.shards - self.snapshots.len()) as u64),
        ];
        e.gauge("lockify_shards", "Shards that answered this reading, and that did not", shards)?;
        self.build(&mut e)?;
        self.certificates(&mut e)?;
        self.clients(&mut e)?;
        self.sessions(&mut e)?;
        self.node(&mut e)?;
        self.lockspaces(&mut e)?;
        self.claims(&mut e)?;
        self.recoveries(&mut e)
    }
}

impl Snapshots {
    /// One value over all shards.
    fn sum(&self, of: impl Fn(&Snapshot) -> u64) -> Values {
        vec![(Vec::new(), self.snapshots.iter().map(of).sum())]
    }

    /// One value for each lockspace, over all shards.
    fn by_space(&self, of: impl Fn(&SpaceStatus) -> u64) -> Values {
        let mut values: Values = Vec::new();
        for space in self.snapshots.iter().flat_map(|s| &s.status.spaces) {
            let labels = vec![("lockspace", space.name.clone())];
            match values.iter_mut().find(|(l, _)| *l == labels) {
                Some((_, value)) => *value += of(space),
                None => values.push((labels, of(space))),
            }
        }
        values
    }

    /// The same, with a second label that tells several values apart.
    fn by_space_and(&self, label: &'static str, of: &[(&str, Figure<'_>)]) -> Values {
        let each = of.iter().flat_map(|(name, of)| {
            self.by_space(of).into_iter().map(|(mut labels, value)| {
                labels.push((label, (*name).to_owned()));
                (labels, value)
            })
        });
        each.collect()
    }

    fn build(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let Versions { oldest, newest } = SPOKEN;
        let labels = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("oldest_wire_version", oldest.to_string()),
            ("newest_wire_version", newest.to_string()),
        ];
        e.gauge("lockify_build_info", "1; its labels say which release runs", vec![(labels, 1)])
    }

    /// Every shard sees the same certificates.
    fn certificates(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let mut ends = BTreeMap::new();
        for c in self.snapshots.iter().flat_map(|s| &s.status.certificates) {
            let end = ends.entry(c.node).or_insert(c.ends);
            *end = c.ends.min(*end);
        }
        let value = |(node, end): (NodeId, i64)| {
            (vec![("node", node.to_string())], u64::try_from(end).unwrap_or(0))
        };
        let help = "When a node's certificate ends, or its authority: seconds since 1970";
        let name = "lockify_certificate_end_timestamp_seconds";
        e.gauge(name, help, ends.into_iter().map(value).collect())
    }

    fn clients(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let (mut grants, mut waits) = (Durations::default(), Durations::default());
        for s in &self.snapshots {
            grants.merge(&s.figures.grants);
            waits.merge(&s.figures.waits);
        }
        let help = "From a local client's request or conversion to its grant";
        e.durations("lockify_grant_duration", help, &grants)?;
        let help = "From the call to the end, of requests and conversions that did not end at once";
        e.durations("lockify_wait_duration", help, &waits)?;
        let outcomes = |s: &Snapshot| s.figures.outcomes;
        let values = [
            ("granted", self.sum(|s| outcomes(s).granted)),
            ("again", self.sum(|s| outcomes(s).again)),
            ("canceled", self.sum(|s| outcomes(s).canceled)),
            ("deadlock", self.sum(|s| outcomes(s).deadlock)),
            ("timed_out", self.sum(|s| outcomes(s).timed_out)),
            ("refused", self.sum(|s| outcomes(s).refused)),
        ];
        let label = |(name, values): (&str, Values)| {
            (vec![("outcome", name.to_owned())], values.into_iter().map(|(_, v)| v).sum())
        };
        let help = "How requests and conversions of local clients ended";
        e.counter("lockify_operations", help, values.into_iter().map(label).collect())?;
        e.counter(
            "lockify_blocking_notices",
            "Sent to local clients",
            self.sum(|s| s.figures.basts),
        )?;
        e.counter(
            "lockify_lost_locks",
            "Reported lost to local clients",
            self.sum(|s| s.figures.lost),
        )
    }

    fn sessions(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        e.gauge("lockify_sessions", "Sessions of local clients", self.sum(|s| s.sessions.open))?;
        e.gauge(
            "lockify_session_locks",
            "Their locks, and requests for locks",
            self.sum(|s| s.sessions.locks),
        )?;
        e.counter("lockify_sessions_opened", "Sessions opened", self.sum(|s| s.sessions.opened))?;
        let help = "Sessions refused, or ended for what the client did";
        e.counter("lockify_sessions_refused", help, self.sum(|s| s.sessions.ended_by_force))?;
        let values = directions(
            self.sum(|s| s.sessions.bytes_received),
            self.sum(|s| s.sessions.bytes_sent),
        );
        e.counter("lockify_session_bytes", "Bytes exchanged with local clients", values)
    }

    fn node(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let peers = |connected: bool| {
            self.sum(|s| s.status.peers.iter().filter(|p| p.connected == connected).count() as u64)
        };
        let values = labelled("state", [("connected", peers(true)), ("unconnected", peers(false))]);
        e.gauge("lockify_peers", "Other nodes, once for each shard", values)?;
        let backlog = self.sum(|s| s.status.peers.iter().map(|p| p.backlog).sum());
        e.gauge("lockify_peer_backlog", "Messages that peers have not acknowledged", backlog)?;
        let values = directions(
            self.sum(|s| s.status.engine.bytes_received),
            self.sum(|s| s.status.engine.bytes_sent),
        );
        e.counter("lockify_peer_bytes", "Bytes exchanged with other nodes", values)?;
        let values = directions(
            self.sum(|s| s.status.engine.frames_received),
            self.sum(|s| s.status.engine.frames_sent),
        );
        e.counter("lockify_peer_frames", "Frames exchanged with other nodes", values)?;
        let connections = self.sum(|s| s.status.engine.connections);
        e.counter("lockify_peer_connections", "Connections made or accepted", connections)?;
        let values = labelled(
            "reason",
            [
                ("introduction", self.sum(|s| s.status.engine.refused)),
                ("contents", self.sum(|s| s.status.engine.rejected)),
            ],
        );
        e.counter("lockify_peer_refusals", "Peers refused or disconnected", values)?;
        let resent = self.sum(|s| s.status.engine.resent);
        e.counter("lockify_peer_resends", "Messages sent again over a new connection", resent)?;
        e.counter(
            "lockify_quorum_losses",
            "Times that quorum was lost",
            self.sum(|s| s.status.engine.halts),
        )?;
        let views = self.snapshots.iter().map(|s| s.view_changes).max().unwrap_or(0);
        let views = vec![(Vec::new(), views)];
        e.counter("lockify_view_changes", "Views that have begun", views)?;
        let era = self.snapshots.iter().filter_map(|s| s.era).max();
        let era = era.map(|era| (Vec::new(), era)).into_iter().collect();
        e.gauge("lockify_era", "The era of fencing tokens: an operator begins another one", era)?;
        let turn = self.snapshots.iter().map(|s| s.status.engine.longest_turn).max();
        e.time(
            "lockify_longest_turn",
            "The longest turn of an event loop so far: heartbeats wait for no more than that",
            turn.unwrap_or(0),
        )?;
        let members = self.snapshots.iter().map(|s| s.status.members.len() as u64).min();
        let members = vec![(Vec::new(), members.unwrap_or(0))];
        e.gauge("lockify_members", "Nodes in the view; 0: no quorum", members)?;
        let unfenced = self.snapshots.iter().map(|s| s.status.unfenced.len() as u64).max();
        let unfenced = vec![(Vec::new(), unfenced.unwrap_or(0))];
        e.gauge("lockify_unfenced_nodes", "Nodes that are gone, but may still act", unfenced)
    }

    fn lockspaces(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let running = self.by_space(|s| u64::from(s.running));
        e.gauge("lockify_lockspace_running", "Shards in which the lockspace runs", running)?;
        e.gauge(
            "lockify_locks",
            "Locks in memory, other nodes' included",
            self.by_space(|s| s.locks),
        )?;
        e.gauge("lockify_resources", "Resources in memory", self.by_space(|s| s.resources))?;
        e.gauge(
            "lockify_waiting_locks",
            "Locks that wait or convert",
            self.by_space(|s| s.waiting),
        )?;
        e.counter(
            "lockify_master_grants",
            "Grants as a master",
            self.by_space(|s| s.stats.grants),
        )?;
        let help = "Requests and conversions queued as a master";
        e.counter("lockify_master_queued", help, self.by_space(|s| s.stats.queued))?;
        let help = "Messages sent to other members";
        e.counter("lockify_messages_sent", help, self.by_space(|s| s.stats.messages_sent))?;
        let help = "Messages dropped as they were nobody's, or made no sense";
        e.counter("lockify_messages_dropped", help, self.by_space(|s| s.stats.dropped))?;
        let help = "Round trips that local clients waited for";
        e.counter("lockify_round_trips", help, self.by_space(|s| s.stats.round_trips))?;
        let help = "Searches for deadlocks led by this node";
        e.counter("lockify_deadlock_searches", help, self.by_space(|s| s.stats.deadlock_searches))?;
        let help = "Waits that these ended";
        e.counter("lockify_deadlocks", help, self.by_space(|s| s.stats.deadlocks))
    }

    fn claims(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        e.counter("lockify_claims", "Claims made", self.by_space(|s| s.stats.claims))?;
        let values = self.by_space_and(
            "outcome",
            &[
                ("confirmed", &|s| s.stats.confirmed),
                ("refused", &|s| s.stats.refusals),
                ("merged", &|s| s.stats.merges),
                ("conflict", &|s| s.stats.conflicts),
            ],
        );
        let help = "What became of claims; a refused one is merged or ends in a conflict next";
        e.counter("lockify_claim_outcomes", help, values)?;
        let help = "Claims not settled";
        e.gauge("lockify_claims_unsettled", help, self.by_space(|s| s.unsettled_claims))?;
        e.counter(
            "lockify_claim_batches",
            "Batches of claims sent",
            self.by_space(|s| s.stats.claim_batches),
        )?;
        let help = "Operations that waited behind the barrier of unsettled claims";
        e.counter("lockify_barrier_waits", help, self.by_space(|s| s.stats.barrier_waits))?;
        let help = "How long they waited, together";
        e.seconds("lockify_barrier_wait", help, self.by_space(|s| s.stats.barrier_wait_ns))
    }

    fn recoveries(&self, e: &mut Encoder<'_>) -> Result<(), Error> {
        let help = "Recoveries completed";
        e.counter("lockify_recoveries", help, self.by_space(|s| s.stats.recoveries))?;
        let values = self.by_space_and(
            "step",
            &[
                ("nodes", &|s| s.stats.recovery_step_ns[0]),
                ("directory", &|s| s.stats.recovery_step_ns[1]),
                ("locks", &|s| s.stats.recovery_step_ns[2]),
                ("done", &|s| s.stats.recovery_step_ns[3]),
            ],
        );
        e.seconds("lockify_recovery", "Time spent in recoveries, by step", values)
    }
}

fn labelled<const N: usize>(label: &'static str, all: [(&str, Values); N]) -> Values {
    let one = |(name, values): (&str, Values)| {
        (vec![(label, name.to_owned())], values.into_iter().map(|(_, v)| v).sum())
    };
    all.into_iter().map(one).collect()
}

fn directions(received: Values, sent: Values) -> Values {
    labelled("direction", [("received", received), ("sent", sent)])
}
