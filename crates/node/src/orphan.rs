//! Removes sandboxes and unused layers that dead processes left behind on this machine.

use std::path::Path;

use api::SandboxId;
use host::{Error, Machine};

use crate::journal::{in_use, kept};

/// Stops and removes every sandbox whose owning process has died and that is in no journal. Returns the IDs
/// of these sandboxes.
///
/// # Errors
/// Stored data cannot be read, or a sandbox cannot be removed. The first error is returned.
pub async fn remove_orphans(machine: &Machine) -> Result<Vec<SandboxId>, Error> {
    machine.tidy(|| kept(machine.data())).await
}

/// Removes incomplete layers, and layers that no template references, no recent build step created and no
/// sandbox uses. Call this function after [`remove_orphans`].
///
/// # Errors
/// Stored data cannot be read, or a layer cannot be removed. The first error is returned.
pub fn remove_unused_layers(data: &Path) -> Result<(), Error> {
    template::tidy(data, || in_use(data))
}
