//! The rules, one file each.

mod barrier;
mod claims_end;
mod compatible_grants;
mod completion_once;
mod deadlock;
mod fencing;
mod lives;
mod lvb;
mod one_master;
mod order;
mod progress;

pub use barrier::Barrier;
pub use claims_end::ClaimsEnd;
pub use compatible_grants::CompatibleGrants;
pub use completion_once::CompletionOnce;
pub use deadlock::Deadlock;
pub use fencing::Fencing;
pub use lives::Lives;
pub use lvb::LvbContent;
pub use one_master::OneMaster;
pub use order::Order;
pub use progress::Progress;

use crate::invariant::Invariant;

/// All rules, as a checker applies them.
pub fn all(remembered_tokens: usize) -> Vec<Box<dyn Invariant + Send>> {
    vec![
        Box::new(OneMaster::default()),
        Box::new(CompatibleGrants::default()),
        Box::new(ClaimsEnd),
        Box::new(Barrier::default()),
        Box::new(CompletionOnce),
        Box::new(LvbContent::default()),
        Box::new(Order::default()),
        Box::new(Fencing::new(remembered_tokens)),
        Box::new(Lives::new(remembered_tokens)),
        Box::new(Deadlock::default()),
        Box::new(Progress),
    ]
}
