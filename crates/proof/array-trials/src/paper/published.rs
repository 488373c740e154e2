//! The paper's printed numbers: figure 6, and the figures that its text gives.

use lockify_array::Scheme;

/// A column of figure 6.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Column {
    /// Mean latency in milliseconds.
    pub latency_ms: f64,
    /// Operations per second.
    pub per_s: f64,
    /// Messages per operation.
    pub messages: f64,
    /// Share of operations that were delayed.
    pub delayed: f64,
    /// Operations per second at the peak, with 20 devices.
    pub peak: f64,
}

/// Figure 6.
pub fn figure_6(scheme: Scheme) -> Column {
    let (latency_ms, per_s, messages, delayed, peak) = match scheme {
        Scheme::ServerLocking => (49.0, 599.6, 10.67, 0.0062, 600.0),
        Scheme::CallbackLocking => (41.0, 599.6, 9.57, 0.33, 899.3),
        Scheme::DeviceLocking => (33.0, 600.2, 11.86, 0.0031, 1275.1),
        Scheme::TimestampOrdering => (32.8, 599.7, 7.79, 0.0016, 1274.7),
        Scheme::ZeroOverhead => (29.71, 600.4, 6.68, 0.0, 1349.5),
    };
    Column { latency_ms, per_s, messages, delayed, peak }
}

/// The top of figure 10's axis. The paper shows no scheme at a higher latency, so a load beyond it counts as overload.
pub const LATENCY_LIMIT_MS: f64 = 89.29;

/// The printed number of a sweep's point. Figure 6 is the baseline's point in figures 8 and 10, and text and axes name a
/// few more.
pub fn published(figure: &str, scheme: Scheme, metric: &str, at: f64) -> Option<f64> {
    match (figure, metric, at) {
        ("8", "delayed_share", 100.0) => Some(figure_6(scheme).delayed),
        ("10", "messages_per_op", 70.0) => Some(figure_6(scheme).messages),
        // The axis ends there, and nothing has more messages.
        ("10", "messages_per_op", 10.0) if scheme == Scheme::DeviceLocking => Some(15.62),
        // With 60 % cache hits; with 20 % nothing keeps up with so many hosts.
        ("12", "retry_share", 58.0) if scheme == Scheme::DeviceLocking => Some(0.17),
        _ => None,
    }
}
