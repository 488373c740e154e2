//! The counts of a client's verbs.

/// The verbs that a client has posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Compare-and-swaps, masked ones included.
    pub cas: u64,
    /// Those of them that changed nothing.
    pub cas_failed: u64,
    /// The number of fetch-and-adds.
    pub faa: u64,
    /// The number of READs.
    pub read: u64,
    /// The number of WRITEs.
    pub write: u64,
    /// Messages sent.
    pub send: u64,
    /// Messages received.
    pub recv: u64,
}

impl Counts {
    /// Verbs at the home.
    pub fn verbs(&self) -> u64 {
        self.cas + self.faa + self.read + self.write
    }

    /// The increase since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            cas: self.cas - before.cas,
            cas_failed: self.cas_failed - before.cas_failed,
            faa: self.faa - before.faa,
            read: self.read - before.read,
            write: self.write - before.write,
            send: self.send - before.send,
            recv: self.recv - before.recv,
        }
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.cas += other.cas;
        self.cas_failed += other.cas_failed;
        self.faa += other.faa;
        self.read += other.read;
        self.write += other.write;
        self.send += other.send;
        self.recv += other.recv;
    }
}
