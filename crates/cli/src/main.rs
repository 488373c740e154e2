//! `lockify`: locks for the whole cluster on the command line.
#![deny(unsafe_code)]

mod array;
mod bench;
mod check;
mod cluster;
mod completions;
mod connect;
mod demo;
mod detach;
mod doctor;
mod exit;
mod fabric;
mod fence_lockify;
mod health;
mod hold;
mod inspect;
mod kernel;
mod locks;
mod manual;
mod memory_server;
mod output;
mod progress;
mod reload;
mod remote_lock;
mod restart;
mod run;
mod secure;
mod serve;
mod sim;
mod status;
mod top;
mod waits;
mod who;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Ended;

/// Cluster-wide locks: take them, look at them, measure them, prove them.
#[derive(Parser)]
#[command(name = "lockify", version, after_help = exit::HELP, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Who(who::Args),
    Locks(locks::Args),
    Status(status::Args),
    Doctor(doctor::Args),
    Top(top::Args),
    Serve(serve::Args),
    Reload(reload::Args),
    Restart(restart::Args),
    Cluster(cluster::Args),
    MemoryServer(memory_server::Args),
    RemoteLock(remote_lock::Args),
    Array(array::Args),
    Kernel(kernel::Args),
    Demo(demo::Args),
    Check(check::Args),
    Sim(sim::Args),
    Bench(bench::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Manual(manual::Args),
    #[command(hide = true)]
    DemoWorker,
    #[command(hide = true)]
    RemoteWorker,
    #[command(hide = true)]
    ArrayWorker,
    #[command(hide = true)]
    RecoveryWorker,
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if fence_lockify::is_called(args.first().map(AsRef::as_ref)) {
        return fence_lockify::run(args);
    }
    let ended = dispatch(Cli::parse().command);
    ended.unwrap_or_else(|failure| {
        crate::output::print_message(&failure.to_string());
        failure.code().into()
    })
}

fn dispatch(command: Command) -> Ended {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Who(args) => who::run(&args),
        Command::Locks(args) => locks::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::MemoryServer(args) => memory_server::run(&args),
        Command::RemoteLock(args) => remote_lock::run(&args),
        Command::Array(args) => array::run(&args),
        Command::Kernel(args) => kernel::run(&args),
        Command::Demo(args) => demo::run(args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Manual(args) => manual::run(&args),
        Command::DemoWorker => demo::worker(),
        Command::RemoteWorker => bench::remote_worker(),
        Command::ArrayWorker => bench::array_worker(),
        Command::RecoveryWorker => bench::recovery_worker(),
    }
}
