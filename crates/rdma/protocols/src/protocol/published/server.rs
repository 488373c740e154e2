//! SRSL (docs/design/onesided.md 2.1), the client's side: the home decides, by messages. Its side is in `home/srsl.rs`.
//!
//! With leases a waiter asks again and again. A grant says which of these questions came last, and the lease starts when
//! that one was asked: that was before the server granted, from where the server counts.

use crate::fabric::{Fabric, Nanos};
use crate::grant::Grant;
use crate::letter::{Claimant, Kind};
use crate::options::Mode;
use crate::protocol::Hold;
use crate::session::{Session, Spot, Stop};
use crate::table::LockId;

/// The bit of a question's number that says exclusive.
pub(crate) const EXCLUSIVE: u64 = 1 << 16;

pub(crate) async fn acquire<F: Fabric>(
    s: &Session<F>,
    lock: LockId,
    mode: Mode,
) -> Result<Grant, Stop> {
    let spot = s.enter(lock, 0);
    let home = s.table.region().home;
    let mut asked: Vec<Nanos> = Vec::new();
    loop {
        let number = asked.len() as u64 & 0xffff;
        asked.push(s.fabric.now());
        let mode = if mode == Mode::Exclusive { EXCLUSIVE } else { 0 };
        s.send(home, spot.letter(Kind::Request, Claimant::NOBODY, number | mode)).await?;
        if let Some(grant) = s.next_letter(spot, |l| l.kind == Kind::Grant).await {
            let number = (grant.value & 0xffff) as usize;
            let since = asked.get(number).or(asked.first()).copied().unwrap_or_default();
            return Ok(Grant { spot, since, order: grant.value >> 16, hold: Hold::Server });
        }
    }
}

pub(crate) async fn release<F: Fabric>(
    s: &Session<F>,
    spot: Spot,
    until: Nanos,
) -> Result<(), Stop> {
    let late = s.fabric.now() >= until;
    s.send(s.table.region().home, spot.letter(Kind::Release, Claimant::NOBODY, 0)).await?;
    if late { Err(Stop::Evicted) } else { Ok(()) }
}
