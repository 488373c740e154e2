//! libdlm's interface, as programs in C use it.

mod abi;
mod common;
mod lvmlockd;
mod programs;
