//! The simulator and the model check, on the code that is shipped.

mod model;
mod mutations;
mod seeds;
