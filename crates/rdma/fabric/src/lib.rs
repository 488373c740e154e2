//! Fabrics between real processes: what implements [`lockify_onesided::Fabric`] outside of a simulator.
//!
//! | module | carries verbs by | messages by | tested on |
//! |---|---|---|---|
//! | [`shm`] | the processor's atomics, in a file that all processes of a machine map | rings in that file, and futexes | this machine |
//! | [`verbs`] | RDMA: reliable connections of libibverbs, loaded at run time | the same connections | Soft-RoCE between kernels (`labs/kernels/tests/rdma`) |
//!
//! A fabric has an executor of its own, that waits the way its messages arrive: [`FabricExecutor`].
#![deny(unsafe_code)]

mod clock;
mod patience;
pub mod shm;
pub mod verbs;

use core::future::Future;

use lockify_onesided::Fabric;

/// A fabric that runs futures. Clones are the same end.
pub trait FabricExecutor: Fabric + Clone {
    /// Runs a future of this fabric to its end, on this thread.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T;
}

impl FabricExecutor for shm::Shm {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        shm::Shm::block_on(self, future)
    }
}

impl FabricExecutor for verbs::Verbs {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        verbs::Verbs::block_on(self, future)
    }
}
