//! The home's programs, for protocols whose words are not enough.

mod cosed;
mod srsl;

use crate::error::LockError;
use crate::fabric::{Fabric, Nanos};
use crate::options::{Options, Protocol};
use crate::table::Table;

/// Serves a table at its home; never ends, but for an error. Protocols that need no home
/// ([`Protocol::needs_home`]) have nothing to serve.
///
/// # Errors
/// A verb or a message of the home's own failed.
pub async fn serve<F: Fabric>(fabric: F, table: Table, options: Options) -> Result<(), LockError> {
    run(fabric, table, options, None).await
}

/// As [`serve`], for a table that servers serve one after the other, however each of them ends: what the next one must
/// know is in the table's memory. Nothing that the home grants is granted before `quiet`, by [`Fabric::now`]: a lease after
/// the server before has ended, or 0 for the first one.
///
/// # Errors
/// As [`serve`].
pub async fn serve_after<F: Fabric>(
    fabric: F,
    table: Table,
    options: Options,
    quiet: Nanos,
) -> Result<(), LockError> {
    run(fabric, table, options, Some(quiet)).await
}

async fn run<F: Fabric>(
    fabric: F,
    table: Table,
    options: Options,
    follows: Option<Nanos>,
) -> Result<(), LockError> {
    match options.protocol {
        Protocol::Srsl => srsl::serve(&fabric, table, options, follows).await,
        // Readers that left earlier are forgotten with the former server: a waiter for them repairs the lock.
        Protocol::NCosed => cosed::serve(&fabric, table, options).await,
        _ => core::future::pending().await,
    }
}
