//! Several lock servers of one array, and what happens to them: each may serve, and each may fail while it does.

use std::ops::Range;

use lockify_array::{ServerId, Time};
use lockify_sim::{Cut, Fault, MILLISECOND, Nanos, NodeId, Random};
use rand::RngExt as _;
use rand::SeedableRng as _;

use crate::places::Places;

/// An array's lock servers in a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Succession {
    /// How many there are.
    pub servers: u16,
    /// The length of their leases.
    pub lease: Time,
    /// The log of one of them is put back to an older copy, no earlier than this.
    pub old_log: Option<(ServerId, Nanos)>,
    /// Decides about their faults.
    seed: u64,
}

/// The kinds of faults of a lock server.
const KINDS: u32 = 7;

impl Succession {
    /// Draws one. In every other one, a log is put back to an older copy before the faults end.
    pub fn draw(lease: Time, quiet_at: Nanos, random: &mut Random) -> Succession {
        let (servers, seed) = (random.random_range(2..=3), random.random());
        let put_back = random.random_range(quiet_at / 4..quiet_at);
        let server = ServerId(random.random_range(0..servers));
        let old_log = random.random_bool(0.5).then_some((server, put_back));
        Succession { servers, lease, old_log, seed }
    }

    /// The faults. Whichever serves at the time is as likely to be hit as another one.
    pub fn faults(&self, places: &Places, when: Range<Nanos>) -> Vec<(Nanos, Fault)> {
        let mut random = Random::seed_from_u64(self.seed);
        let mut all = Vec::new();
        let mut at = when.start + random.random_range(0..2 * self.lease);
        for id in 0.. {
            // Shorter than a lease, and longer.
            let until = at + random.random_range(self.lease / 4..6 * self.lease);
            if until >= when.end {
                break;
            }
            let server = places.server(ServerId(random.random_range(0..self.servers)));
            all.extend(self.fault(places, server, id, at..until, &mut random));
            at = until.saturating_sub(self.lease) + random.random_range(0..3 * self.lease);
        }
        all
    }

    fn fault(
        &self,
        places: &Places,
        server: NodeId,
        id: u32,
        when: Range<Nanos>,
        random: &mut Random,
    ) -> Vec<(Nanos, Fault)> {
        let others = || places.all_servers().filter(move |other| *other != server);
        let cut_off = |from: Vec<NodeId>| {
            let cut = Cut::Groups(vec![vec![server], from]);
            vec![(when.start, Fault::Partition { id, cut }), (when.end, Fault::Heal(id))]
        };
        match random.random_range(0..KINDS) {
            0 => stopped(server, when),
            1 => vec![(when.start, Fault::Pause(server)), (when.end, Fault::Resume(server))],
            2 => cut_off(places.all_devices().chain(others()).chain(places.all_hosts()).collect()),
            3 => cut_off(places.all_devices().collect()),
            4 => cut_off(places.all_hosts().collect()),
            5 => cut_off(others().collect()),
            _ => {
                let later = when.start + random.random_range(0..5) * MILLISECOND..when.end;
                let rest = others().flat_map(|other| stopped(other, later.clone()));
                stopped(server, when).into_iter().chain(rest).collect()
            }
        }
    }
}

fn stopped(node: NodeId, when: Range<Nanos>) -> Vec<(Nanos, Fault)> {
    vec![(when.start, Fault::Crash { node, power_loss: false }), (when.end, Fault::Restart(node))]
}
