//! The simulator and the model check, on the code that is shipped.

mod array;
mod array_every_step;
mod array_mutations;
mod array_seeds;
mod model;
mod mutations;
mod onesided;
mod report;
mod seeds;
