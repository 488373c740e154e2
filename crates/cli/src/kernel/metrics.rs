//! The kernel's claims as metrics (docs/observing.md, "Claims of the kernel").

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::status::{Space, Status};

type Labels = Vec<(&'static str, String)>;
/// Numbers and seconds alike.
type Counters = Family<Labels, Counter<f64, AtomicU64>>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// The name and meaning of a metric of a lockspace; `None`: the kernel does not tell it.
type OfSpace = (&'static str, &'static str, fn(&Space) -> Option<f64>);

const COUNTED: [OfSpace; 9] = [
    ("claims", "Claims that were granted at once", |s| s.number("claims")),
    ("strict_claims", "Claims that waited for their answer", |s| s.number("claims_strict")),
    ("refused_claims", "Claims for which the directory node knew another master", |s| {
        s.number("refusals")
    }),
    ("merged_claims", "Refused claims whose lock was then granted by that master", |s| {
        s.number("merges")
    }),
    ("recovered_claims", "Claims of which a recovery has made lookups", |s| s.number("recovered")),
    ("resent_claims", "Claims that were sent again", |s| s.number("resent")),
    ("lookups", "Lookups that were sent, with the claim on or off", |s| s.number("lookups")),
    ("barrier_waits", "Operations that have waited at the barrier", |s| s.number("barrier_waits")),
    ("barrier_wait_seconds", "The sum of these waits", |s| s.seconds("barrier_wait_us")),
];

const MEASURED: [OfSpace; 4] = [
    ("agreed", "1 if all members know claims", |s| s.agreed.map(|agreed| agreed.into())),
    ("pending_claims", "Claims that are not settled yet", |s| s.number("pending")),
    ("barrier_waiting", "Operations that wait at the barrier", |s| s.number("parked")),
    ("barrier_longest_wait_seconds", "The longest wait since the lockspace began", |s| {
        s.seconds("barrier_wait_max_us")
    }),
];

impl Space {
    fn number(&self, name: &str) -> Option<f64> {
        self.counters.get(name).map(|&number| number as f64)
    }

    fn seconds(&self, name: &str) -> Option<f64> {
        self.number(name).map(|us| us / 1e6)
    }
}

/// The text that Prometheus reads.
pub(super) fn text(status: &Status) -> Result<String, std::fmt::Error> {
    let labels = |space: &Space| -> Labels {
        let node = status.node.map(|node| ("node", node.to_string()));
        [("lockspace", space.name.clone())].into_iter().chain(node).collect()
    };
    let values = |value: fn(&Space) -> Option<f64>| {
        let told = status.lockspaces.iter().map(move |space| Some((space, value(space)?)));
        told.flatten().map(|(space, value)| (labels(space), value))
    };
    let mut registry = Registry::with_prefix("lockify_kernel");
    for (name, help, value) in COUNTED {
        let counters = Counters::default();
        for (labels, value) in values(value) {
            counters.get_or_create(&labels).inc_by(value);
        }
        registry.register(name, help, counters);
    }
    for (name, help, value) in MEASURED {
        let gauges = Gauges::default();
        for (labels, value) in values(value) {
            gauges.get_or_create(&labels).set(value);
        }
        registry.register(name, help, gauges);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
