//! Fabrics: shared memory between real processes, and devices that are missing.

mod bad_input;
mod no_device;
mod processes;
