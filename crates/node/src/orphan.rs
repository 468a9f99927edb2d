//! Removal of what processes that died left on this machine: their sandboxes, and layers that nothing uses.

use std::path::Path;

use api::SandboxId;
use host::{Error, Machine};

use crate::journal::{in_use, kept};

/// Stops and removes every sandbox whose owning process has died and that is in no server's journal. Returns their ids.
///
/// # Errors
/// What could not be read or removed.
pub async fn remove_orphans(machine: &Machine) -> Result<Vec<SandboxId>, Error> {
    machine.tidy(|| kept(machine.data())).await
}

/// Removes half-made layers, and layers that no template names, no recent step made and no sandbox uses. Call it after
/// [`remove_orphans`].
///
/// # Errors
/// What could not be read or removed.
pub fn remove_unused_layers(data: &Path) -> Result<(), Error> {
    template::tidy(data, || in_use(data))
}
