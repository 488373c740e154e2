//! The lock manager as a state machine.
#![no_std]
#![forbid(unsafe_code)]
