//! Fabrics between real processes: what implements [`lockify_onesided::Fabric`] outside of a simulator.
//!
//! | module | carries verbs by | messages by | tested on |
//! |---|---|---|---|
//! | [`shm`] | the processor's atomics, in a file that all processes of a machine map | rings in that file, and futexes | this machine |
//!
//! A fabric has an executor of its own, that waits the way its messages arrive: [`shm::Shm::block_on`].
#![deny(unsafe_code)]

pub mod shm;
