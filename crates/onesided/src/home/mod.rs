//! What runs at the home, for the protocols whose words do not say everything.

mod cosed;
mod srsl;

use crate::client::LockError;
use crate::fabric::Fabric;
use crate::options::{Options, Protocol};
use crate::table::Table;

/// Serves a table at its home; never ends, but for an error. Protocols that need no home
/// ([`Protocol::needs_home`]) have nothing to serve.
///
/// # Errors
/// A verb or a message of the home's own failed.
pub async fn serve<F: Fabric>(fabric: F, table: Table, options: Options) -> Result<(), LockError> {
    match options.protocol {
        Protocol::Srsl => srsl::serve(&fabric, table, options).await,
        Protocol::NCosed => cosed::serve(&fabric, table, options).await,
        _ => core::future::pending().await,
    }
}
