//! The costs of verbs and messages. They were fixed before any protocol was measured with them.

use lockify_sim::{Delay, Nanos};

/// The largest difference between the clocks of two nodes, as DrTM assumes of the precision time
/// protocol.
pub const CLOCK_ERROR: Nanos = 50_000;

/// A cost model of a fabric.
///
/// A verb travels to the home, waits for the home's NIC, executes, and its completion travels back. Atomics wait for each
/// other at the NIC, and longer for those at the same address. The NIC keeps a lock on an address from its read over the
/// bus to its write. READs and WRITEs wait for the NIC only. The verbs of one client execute in the order of posting.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// From a client to the home.
    pub there: Delay,
    /// From the home to a client, with the time of the home's NIC and memory.
    pub back: Delay,
    /// A message between two clients, until the receiver handles it.
    pub message: Delay,
    /// The additional time of a message to or from the home, compared with a verb on that way.
    pub home_letter: Nanos,
    /// From the start of one atomic to the start of the next, at any address.
    pub atomic_gap: Nanos,
    /// The same at one address.
    pub same_address: Nanos,
    /// From the start of one READ or WRITE to the start of the next.
    pub access_gap: Nanos,
    /// The time of the home's CPU for a message that it gets or sends, one after the other.
    pub home_message: Nanos,
    /// A node's time from the posting of one message to that of the next, the home included.
    pub send_gap: Nanos,
}

/// N-CoSED's Table 1: Send/Recv of 128 bytes and CAS of 8, in nanoseconds. FAA is 10 ns less than CAS there, which is left
/// out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table1 {
    /// How completions are noticed.
    pub name: &'static str,
    /// One message.
    pub send: Nanos,
    /// One atomic, there and back.
    pub atomic: Nanos,
    /// Published latency of SRSL's lock operation, in microseconds.
    pub srsl_us: f64,
    /// Published latency of DQNL's and N-CoSED's.
    pub one_sided_us: f64,
}

/// Completions are polled for.
pub const POLLING: Table1 =
    Table1 { name: "polling", send: 4_070, atomic: 5_780, srsl_us: 16.0, one_sided_us: 14.02 };

/// Completions interrupt.
pub const NOTIFICATION: Table1 = Table1 {
    name: "notification",
    send: 11_180,
    atomic: 12_970,
    srsl_us: 27.37,
    one_sided_us: 19.6,
};

/// One way of a message of 64 bytes between a process and its node's daemon (N-CoSED).
pub const IPC: Nanos = 2_900;

/// The time to begin one: the whole visible part of an unlock.
pub const IPC_BEGIN: Nanos = 1_100;

/// **Calibration**, the one fitted parameter: between two grants that one node sends, as a share of a message's time. 0.19
/// reproduces both published cascades.
pub const GRANT_GAP_SHARE: f64 = 0.19;

impl Table1 {
    /// The cost model.
    pub fn profile(&self) -> Profile {
        Profile {
            there: Delay::Constant(self.atomic / 2),
            back: Delay::Constant(self.atomic - self.atomic / 2),
            message: Delay::Constant(self.send),
            home_letter: self.send - self.atomic / 2,
            atomic_gap: 0,
            same_address: 0,
            access_gap: 0,
            home_message: 0,
            send_gap: (self.send as f64 * GRANT_GAP_SHARE) as Nanos,
        }
    }
}

/// ShiftLock's testbed as far as it is known: 100 Gb/s, a round trip of about 1862 ns (its unit of waiting).
///
/// **Calibration**, by published figures on one lock that are compared with nothing else:
/// - 269 ns from one atomic at an address to the next. 240 clients that try for one lock without a pause get it 15.5 K
///   times a second (the paper's motivation). Each release then waits for a try of every other client, so that is 1 /
///   (240 · 269 ns).
/// - 3 us for a message from client to client, including the posting and the notice. The artifact's smallest example
///   prints 738528 locks per second: eight threads, one lock, four of five share, a pause of 1000 ns between polls.
///
/// Some costs are not published. The model assumes these: latencies spread log-normally, by a median of 40 ns; messages
/// to and from the home take as long as others; 40 M atomics and 100 M accesses per second at the home; a server's core
/// handles 2 M messages per second.
pub fn hundred_gigabit() -> Profile {
    let spread = |base| Delay::LogNormal { base, median: 40, sigma: 0.7 };
    Profile {
        there: spread(850),
        back: spread(910),
        message: spread(2_960),
        home_letter: 2_100,
        atomic_gap: 25,
        same_address: 269,
        access_gap: 10,
        home_message: 500,
        send_gap: 50,
    }
}
