//! An array's status as metrics (docs/array.md, "Watching an array").

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::status::{Device, LockServer, Status};

/// Which array, and of most metrics which device.
type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<u64, AtomicU64>>;

/// A metric of each device; `None`: it is not known.
type OfDevice = (&'static str, &'static str, fn(&Device) -> Option<u64>);

const OF_DEVICES: [OfDevice; 10] = [
    ("device_serving", "1 if the device serves hosts", |d| Some(d.serving.into())),
    ("device_good", "1 if the device has all of its content", |d| {
        (!d.witness).then_some((d.condition == Some("good")).into())
    }),
    ("device_rebuilt_stripes", "Stripes of all groups that a rebuild has finished", |d| d.done),
    ("device_hosts", "Hosts that are connected", |d| {
        d.requests.is_some().then_some(d.hosts.len() as u64)
    }),
    ("device_requests", "Requests since the process began", |d| d.requests),
    ("device_unchecked_stripes", "Stripes that are still checked after a restart", |d| d.unchecked),
    ("device_read_errors", "Failed reads of blocks since the process began", |d| d.errors),
    ("device_unreadable_blocks", "Blocks that the medium does not return now", |d| d.unreadable),
    ("device_rewritten_blocks", "Blocks that were repaired since the process began", |d| {
        d.rewritten
    }),
    ("device_lost_writes", "Times that the medium has returned an older block than it had", |d| {
        d.lost_writes
    }),
];

/// A metric of each lock server.
type OfLockServer = (&'static str, &'static str, fn(&LockServer) -> u64);

const OF_LOCK_SERVERS: [OfLockServer; 2] = [
    ("lock_server_serves", "1 if this lock server serves", |s| s.serving.into()),
    ("lock_server_complete", "1 if this lock server is there and has every lock", |s| {
        s.complete.into()
    }),
];

/// The text that Prometheus reads.
pub(super) fn text(status: &Status) -> Result<String, std::fmt::Error> {
    let array = vec![("array", status.array.clone())];
    let mut registry = Registry::with_prefix("lockify_array");
    let mut of_array = |name, help, value: u64| {
        let gauges = Gauges::default();
        gauges.get_or_create(&array).set(value);
        registry.register(name, help, gauges);
    };
    of_array("healthy", "1 if everybody is there and good", status.healthy.into());
    of_array("epoch", "Changes of the array's state", status.epoch);
    of_array("content_bytes", "Bytes of content", status.bytes);
    of_array("view", "The number of the newest view; 0 if there is none", status.view.unwrap_or(0));
    let hosts: usize = status.nodes.iter().map(|node| node.hosts.len()).sum();
    of_array("hosts", "Hosts that have neither ended in order nor been fenced", hosts as u64);
    if let Some(server) = &status.lock_server {
        of_array("lock_server_serving", "1 if a lock server serves", server.serving.into());
        let term = "Times that a lock server has begun to serve";
        of_array("lock_server_term", term, status.lock_term);
    }
    let of_lock_servers = OF_LOCK_SERVERS.iter().filter(|_| !status.lock_servers.is_empty());
    for &(name, help, value) in of_lock_servers {
        let gauges = Gauges::default();
        for server in &status.lock_servers {
            let labels = [&array[..], &[("lock_server", server.id.to_string())]].concat();
            gauges.get_or_create(&labels).set(value(server));
        }
        registry.register(name, help, gauges);
    }
    for (name, help, value) in OF_DEVICES {
        let gauges = Gauges::default();
        for device in &status.devices {
            if let Some(value) = value(device) {
                let labels = [&array[..], &[("device", device.id.to_string())]].concat();
                gauges.get_or_create(&labels).set(value);
            }
        }
        registry.register(name, help, gauges);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
