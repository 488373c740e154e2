//! The versions of the messages between an array's processes (`docs/compatibility.md`).

use lockify_trust::Versions;

/// The versions that this release speaks.
pub const SPOKEN: Versions = Versions { oldest: 13, newest: 16 };

/// From this version on, whoever is asked how it stands also tells which software it is
/// ([`Software`](crate::Software)).
pub const TELLS_SOFTWARE: u16 = 14;

/// From this version on, states of an array that has got groups of devices can be told ([`Group`](lockify_array::Group)).
pub const HAS_GROUPS: u16 = 15;

/// From this version on, a lock server that stands by knows the keys that records of the log bring
/// ([`Replica::change_keys`](lockify_array::Replica::change_keys)).
pub const RENEWS_KEYS: u16 = 16;
