//! Reads and writes without any order: the baseline (docs/design/array.md 2.6). These are also the messages to devices when a
//! lock server keeps operations apart.

use super::control::{Context, Control, Second};
use crate::message::{Action, Blocks};
use crate::plan::{self, Access};

pub(super) struct Zero;

impl Control for Zero {
    fn first(&self, context: &Context<'_>, access: &Access) -> Option<Action> {
        let extent = plan::extent(context.layout, access.stripe, access.read.as_ref()?);
        Some(Action::Read { extent, repairs: context.repairs })
    }

    fn second(&self, _access: &Access, blocks: Option<Blocks>, repairs: bool) -> Option<Second> {
        let write = |blocks| Action::Write { blocks, repairs };
        blocks.map(|blocks| Second { action: write(blocks), hidden: false })
    }

    fn give_up(&self, _access: &Access, _answered: bool) -> Option<Action> {
        None
    }
}
