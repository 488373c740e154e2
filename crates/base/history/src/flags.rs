//! Flags of calls and completions; in JSON, lists of lower-case names.

use bitflags::bitflags;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

bitflags! {
    /// Flags of request, convert, unlock and cancel calls (docs/design/semantics.md 3). The values are
    /// those of Linux `DLM_LKF_*`, so that a call's bits can be taken over as they are.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Flags: u32 {
        /// Not grantable at once: EAGAIN.
        const NOQUEUE = 0x1;
        /// Transfer the lock value block.
        const VALBLK = 0x8;
        /// Do not overtake waiting conversions.
        const QUECVT = 0x10;
        /// Invalidate the lock value block where it would be written.
        const IVVALBLK = 0x20;
        /// Resolve a conversion deadlock by demotion to NL.
        const CONVDEADLK = 0x40;
        /// Survives its client as an orphan.
        const PERSISTENT = 0x80;
        /// No EDEADLK for this operation.
        const NODLCKWT = 0x100;
        /// In nobody's way, as far as deadlocks are concerned.
        const NODLCKBLK = 0x200;
        /// Grant NL at once.
        const EXPEDITE = 0x400;
        /// Blocking notices even if NOQUEUE fails.
        const NOQUEUEBAST = 0x800;
        /// Queue at the head.
        const HEADQUE = 0x1000;
        /// Grant whenever compatible.
        const NOORDER = 0x2000;
        /// Adopt an orphan.
        const ORPHAN = 0x4000;
        /// Alternative mode PR.
        const ALTPR = 0x8000;
        /// Alternative mode CW.
        const ALTCW = 0x1_0000;
        /// Unlock in any state (FORCEUNLOCK).
        const FORCE = 0x2_0000;
        /// Claim the mastership (docs/design/claim.md 4).
        const NOTIFY = 0x8_0000;
        /// The locked object is being freed: exempt from the claim barrier.
        const FREED = 0x10_0000;
    }
}

bitflags! {
    /// Flags of a completion; the values are those of Linux `DLM_SBF_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SbFlags: u8 {
        /// A conversion deadlock was resolved by giving up the granted mode.
        const DEMOTED = 0x1;
        /// The lock value block is not to be trusted.
        const VALNOTVALID = 0x2;
        /// Granted in the alternative mode.
        const ALTMODE = 0x4;
    }
}

macro_rules! as_list_of_names {
    ($flags:ty, $what:literal) => {
        impl Serialize for $flags {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_seq(self.iter_names().map(|(name, _)| name.to_ascii_lowercase()))
            }
        }

        impl<'de> Deserialize<'de> for $flags {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let mut flags = <$flags>::empty();
                for name in Vec::<String>::deserialize(d)? {
                    flags |= <$flags>::from_name(&name.to_ascii_uppercase()).ok_or_else(|| {
                        D::Error::custom(format!(concat!("unknown ", $what, " `{}`"), name))
                    })?;
                }
                Ok(flags)
            }
        }
    };
}

as_list_of_names!(Flags, "flag");
as_list_of_names!(SbFlags, "sb_flag");
