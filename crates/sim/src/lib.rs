//! Deterministic discrete-event simulation.
