//! Removes what dead processes left on this machine: their sandboxes, and unused layers.

use std::path::Path;

use api::SandboxId;
use host::{Error, Machine};

use crate::journal::{in_use, kept};

/// Stops and removes every sandbox whose owning process has died and that is in no journal. Returns their
/// ids.
///
/// # Errors
/// Returns the first error of reading or removing.
pub async fn remove_orphans(machine: &Machine) -> Result<Vec<SandboxId>, Error> {
    machine.tidy(|| kept(machine.data())).await
}

/// Removes incomplete layers, and layers that no template references, no recent step created and no sandbox
/// uses. Call it after [`remove_orphans`].
///
/// # Errors
/// Returns the first error of reading or removing.
pub fn remove_unused_layers(data: &Path) -> Result<(), Error> {
    template::tidy(data, || in_use(data))
}
