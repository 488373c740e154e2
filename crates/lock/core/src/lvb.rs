//! The lock value block (docs/design/semantics.md 6).

use crate::flags::{LockFlags, SbFlags};
use crate::ids::LockId;
use crate::io::Lvb;
use crate::lock::{Lock, Op};
use crate::message::Granted;
use crate::mode::Mode;
use crate::resource::{Resource, ResourceKey};
use crate::store::Store;

/// The effect of a transition on the lock value block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LvbAction {
    /// Resource to caller.
    Read,
    /// Caller to resource.
    Write,
    None,
}

/// The table of docs/design/semantics.md 6.
pub(crate) fn action(granted: Option<Mode>, requested: Mode) -> LvbAction {
    use Mode::*;
    match granted {
        None | Some(NL) => LvbAction::Read,
        Some(EX) => LvbAction::Write,
        Some(PW) if requested < EX => LvbAction::Write,
        Some(gr) if requested >= gr => LvbAction::Read,
        Some(_) => LvbAction::None,
    }
}

impl Lock {
    /// The lock is granted a mode without having read: its copy is of use only if it could not be
    /// written meanwhile.
    pub fn lvb_not_read(&mut self) {
        self.lvb_current &= self.granted > Some(Mode::CR);
    }

    pub fn lvb_written(&mut self, value: Lvb, seq: u32) {
        self.lvb = Some(value);
        self.lvb_seq = seq;
        self.lvb_current = true;
    }

    /// A master elsewhere has granted a conversion that writes or invalidates the block.
    pub fn lvb_granted_writing(&mut self, seq: u32) {
        if self.op == Op::Unlock {
            // The unlock has taken the conversion's place, and its value is still to be sent. The conversion's is
            // not known any more.
            self.lvb_current = false;
            return;
        }
        match self.lvb_out.take() {
            _ if self.flags.contains(LockFlags::IVVALBLK) => self.lvb_current = false,
            Some(written) => self.lvb_written(written, seq),
            None => {}
        }
    }

    /// The lock is one of another master's now, which may have had a block already.
    pub fn lvb_merged(&mut self, granted: Granted) {
        self.lvb_current =
            granted.lvb.is_some() && !granted.status_flags.contains(SbFlags::VALNOTVALID);
        if let Some(block) = granted.lvb {
            self.lvb = Some(block);
            self.lvb_seq = granted.lvb_seq;
        }
    }
}

impl Resource {
    /// The block is another master's affair.
    pub fn forget_block(&mut self) {
        self.lvb = None;
        self.lvb_invalid = false;
    }
}

impl Store {
    /// Moves the block as granting `requested` over the present mode demands, and sets
    /// VALNOTVALID in the lock's flags where the caller must know.
    pub fn move_lvb_at_grant(&mut self, id: LockId, requested: Mode) {
        let lock = &self[id];
        let (key, valblk) = (lock.resource, lock.flags.contains(LockFlags::VALBLK));
        match action(lock.granted, requested) {
            LvbAction::Read => {
                if !valblk || self[key].lvb.is_none() {
                    return self[id].lvb_not_read();
                }
                self.read_lvb(id, key);
            }
            // A writer gets no warning: its value becomes the block, or is not used.
            LvbAction::Write => return self.write_lvb(id),
            LvbAction::None => {}
        }
        if self[key].lvb_invalid {
            self[id].status_flags |= SbFlags::VALNOTVALID;
        }
    }

    /// Unlocking EX or PW writes; anything else leaves the block alone.
    pub fn move_lvb_at_unlock(&mut self, id: LockId) {
        if self[id].granted.is_some_and(Mode::writes) {
            self.write_lvb(id);
        }
    }

    fn read_lvb(&mut self, id: LockId, key: ResourceKey) {
        let seq = self[key].lvb_seq;
        let (value, valid) = (self[key].lvb.clone(), !self[key].lvb_invalid);
        let lock = &mut self[id];
        lock.lvb = value;
        lock.lvb_seq = seq;
        lock.lvb_current = valid;
        lock.lvb_read = true;
    }

    fn write_lvb(&mut self, id: LockId) {
        let lock = &self[id];
        let (key, flags) = (lock.resource, lock.flags);
        if flags.contains(LockFlags::IVVALBLK) {
            self[key].lvb_invalid = true;
            self[id].lvb_current = false;
            return;
        }
        if !flags.contains(LockFlags::VALBLK) {
            return;
        }
        let Some(value) = self[id].lvb_out.take() else { return };
        let resource = &mut self[key];
        resource.lvb = Some(value.clone());
        resource.lvb_seq = resource.lvb_seq.wrapping_add(1);
        resource.lvb_invalid = false;
        let seq = resource.lvb_seq;
        self[id].lvb_written(value, seq);
    }
}

#[cfg(test)]
mod tests {
    use super::{LvbAction, action};
    use crate::mode::Mode;

    /// docs/design/semantics.md 6, row by row: none, NL, CR, CW, PR, PW, EX.
    #[test]
    fn table() {
        let rows = ["RRRRRR", "RRRRRR", "-RRRRR", "--RRRR", "---RRR", "WWWWWR", "WWWWWW"];
        let granted = [None].into_iter().chain(Mode::ALL.map(Some));
        for (granted, row) in granted.zip(rows) {
            for (requested, expected) in Mode::ALL.into_iter().zip(row.chars()) {
                let letter = match action(granted, requested) {
                    LvbAction::Read => 'R',
                    LvbAction::Write => 'W',
                    LvbAction::None => '-',
                };
                assert_eq!(letter, expected, "{granted:?} -> {requested}");
            }
        }
    }
}
