//! Virtual time: nanoseconds since the start of a run.

/// Nanoseconds, as a point in time or as a length of time.
///
/// A point is either *virtual time* (the engine's, the same for everybody) or one node's *local time* (see
/// [`Clock`](crate::Clock)); machines only ever see the latter.
pub type Nanos = u64;

/// One microsecond in [`Nanos`].
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond in [`Nanos`].
pub const MILLISECOND: Nanos = 1_000_000;
/// One second in [`Nanos`].
pub const SECOND: Nanos = 1_000_000_000;

/// Time that a `size`-byte transfer occupies a channel of `bytes_per_s`, rounded up; 0 for an unlimited channel.
pub(crate) fn transfer_time(size: usize, bytes_per_s: Option<u64>) -> Nanos {
    let Some(rate) = bytes_per_s else { return 0 };
    let nanos = (size as u128 * u128::from(SECOND)).div_ceil(u128::from(rate.max(1)));
    Nanos::try_from(nanos).unwrap_or(Nanos::MAX)
}
