//! Timestamp ordering (docs/design/array.md 2.4): R, P or RP, then W; C for abandoned requests.

use super::control::{Context, Control, Second};
use crate::message::{Action, Blocks};
use crate::plan::{self, Access};

pub(super) struct Tso;

impl Control for Tso {
    fn first(&self, context: &Context<'_>, access: &Access) -> Option<Action> {
        let extent = |columns| plan::extent(context.layout, access.stripe, columns);
        Some(Action::Prepare {
            read: access.read.as_ref().map(extent),
            write: access.write.as_ref().map(extent),
            repairs: context.repairs,
            starving: context.starving && access.write.is_none(),
            past: context.past.clone(),
        })
    }

    fn second(&self, access: &Access, blocks: Option<Blocks>, _repairs: bool) -> Option<Second> {
        match blocks {
            Some(blocks) => Some(Second { action: Action::Commit(blocks), hidden: false }),
            // A repair need not write most of the blocks that it could have written.
            None => {
                access.write.is_some().then_some(Second { action: Action::Cancel, hidden: true })
            }
        }
    }

    fn give_up(&self, access: &Access, answered: bool) -> Option<Action> {
        // A read that was answered has left nothing but its timestamp.
        (access.write.is_some() || !answered).then_some(Action::Cancel)
    }
}
