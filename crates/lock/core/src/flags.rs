//! Flags of calls and of completions (docs/design/semantics.md 3).

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::error::Invalid;
use crate::mode::Mode;

bitflags! {
    /// Flags of a lock or convert call; values are those of Linux `DLM_LKF_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct LockFlags: u32 {
        /// Not grantable at once: complete with EAGAIN, never queue.
        const NOQUEUE = 0x1;
        /// Transfer the lock value block (docs/design/semantics.md 6).
        const VALBLK = 0x8;
        /// Convert: do not overtake conversions that wait already.
        const QUECVT = 0x10;
        /// Convert: invalidate the lock value block where it would be written.
        const IVVALBLK = 0x20;
        /// Convert: resolve a conversion deadlock by giving up the granted mode.
        const CONVDEADLK = 0x40;
        /// The lock outlives its client as an orphan.
        const PERSISTENT = 0x80;
        /// Do not end this operation with EDEADLK: the search for deadlocks does not see it wait.
        const NODLCKWT = 0x100;
        /// The search for deadlocks regards this lock, once granted, as blocking nobody: its holder
        /// releases it on demand.
        const NODLCKBLK = 0x200;
        /// NL requests only: grant at once, ignoring the queues.
        const EXPEDITE = 0x400;
        /// With NOQUEUE: a refused call still sends blocking notices.
        const NOQUEUEBAST = 0x800;
        /// Queue at the head.
        const HEADQUE = 0x1000;
        /// Grant whenever compatible with the granted modes, whatever waits.
        const NOORDER = 0x2000;
        /// Adopt an orphan of the same name and mode instead of making a lock.
        const ORPHAN = 0x4000;
        /// Try PR when the mode asked for cannot be granted at once.
        const ALTPR = 0x8000;
        /// Try CW when the mode asked for cannot be granted at once.
        const ALTCW = 0x1_0000;
        /// The caller is creating the locked object and excludes every other way to learn its
        /// name: claim the mastership instead of asking for it (docs/design/claim.md 4).
        const NOTIFY = 0x8_0000;
        /// Convert: the locked object is being freed, so the claim barrier does not apply.
        const FREED = 0x10_0000;
    }
}

impl LockFlags {
    /// The mode that would do instead of `wanted` (ALTPR, ALTCW).
    pub(crate) fn alternative(self, wanted: Mode) -> Option<Mode> {
        let all = [(LockFlags::ALTPR, Mode::PR), (LockFlags::ALTCW, Mode::CW)];
        let found = all.into_iter().find(|&(flag, mode)| self.contains(flag) && wanted != mode);
        found.map(|(_, mode)| mode)
    }

    /// Checks that a conversion from `granted` to `mode` may have these flags.
    ///
    /// # Errors
    /// [`Invalid::RequestOnly`], [`Invalid::DeadlkNoqueue`], [`Invalid::Quecvt`].
    pub fn check_conversion(self, granted: Mode, mode: Mode) -> Result<(), Invalid> {
        if self.intersects(LockFlags::EXPEDITE | LockFlags::ORPHAN | LockFlags::NOTIFY) {
            return Err(Invalid::RequestOnly);
        }
        if self.contains(LockFlags::CONVDEADLK | LockFlags::NOQUEUE) {
            return Err(Invalid::DeadlkNoqueue);
        }
        if self.contains(LockFlags::QUECVT) && !granted.may_quecvt(mode) {
            return Err(Invalid::Quecvt);
        }
        Ok(())
    }
}

bitflags! {
    /// Flags of an unlock call.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct UnlockFlags: u32 {
        /// Write the lock value block if the lock is PW or EX.
        const VALBLK = 0x8;
        /// Invalidate the lock value block if the lock is PW or EX.
        const IVVALBLK = 0x20;
        /// Unlock in any state, also while a request or conversion is outstanding.
        const FORCE = 0x2_0000;
        /// The locked object is being freed, so the claim barrier does not apply.
        const FREED = 0x10_0000;
    }
}

bitflags! {
    /// Flags in a completion; values are those of Linux `DLM_SBF_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct SbFlags: u8 {
        /// CONVDEADLK gave up the granted mode on the way: the protected data must be re-validated.
        const DEMOTED = 0x1;
        /// The lock value block's content is not to be trusted.
        const VALNOTVALID = 0x2;
        /// Granted in the alternative mode.
        const ALTMODE = 0x4;
    }
}
