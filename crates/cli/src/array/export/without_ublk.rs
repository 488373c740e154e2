//! `lockify array export --ublk`, in builds that cannot.

use super::Args;
use crate::exit::{Code, Ended, Failure};

pub(super) fn run(args: &Args, _: u32) -> Ended {
    // It has no use here, as the other options of ublk.
    let _ = args.ublk_discard;
    let what = "this lockify was built without ublk: build it with `cargo build --release -p lockify-cli --features ublk` (which \
                needs libclang), or use --socket and nbd-client";
    Err(Failure::new(Code::Failed, what))
}
