//! Lock protocols in remote memory: every interleaving, single schedules, and their verbs.

mod common;
mod explore;
mod fairness;
mod mutations;
mod verbs;
