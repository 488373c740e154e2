//! Writing, reading and merging histories.

mod history;
mod merge;
