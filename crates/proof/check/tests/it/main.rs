//! Histories and their rules.

mod array;
mod history;
mod merge;
mod rules;
