//! Shared arrays in the simulator, on the code that is shipped.

mod every_step;
mod measure;
mod mutations;
mod seeds;
