//! The inventory of a journal: its sandboxes and their layers, read even while no server is running.

use std::fs;
use std::path::Path;

use api::SandboxId;
use host::error::Error;
use serde::Deserialize;
use template::InUse;

use super::{RECORD, lost, named};

/// Returns the sandboxes in the journal of a data directory, even while no server is running.
///
/// # Errors
/// The directory cannot be read.
pub fn kept(data: &Path) -> Result<Vec<SandboxId>, Error> {
    let directory = data.join("node");
    Ok(named(&directory, RECORD)?.into_iter().chain(lost(&directory)?).collect())
}

/// Returns the sandboxes in the journal of a data directory, and their layers.
///
/// # Errors
/// The directory cannot be read.
pub fn in_use(data: &Path) -> Result<InUse, Error> {
    Ok(InUse { sandboxes: kept(data)?, layers: layers_in_use(data)? })
}

/// Returns the layers of all recorded sandboxes, or `None` if a record is lost or cannot be parsed.
pub(super) fn layers_in_use(data: &Path) -> Result<Option<Vec<String>>, Error> {
    #[derive(Deserialize)]
    struct Layers {
        layers: Vec<String>,
    }
    let directory = data.join("node");
    // The layers of a sandbox whose record is lost are unknown.
    if lost(&directory)?.iter().any(|id| data.join("sandboxes").join(id.as_str()).exists()) {
        return Ok(None);
    }
    let mut layers = Vec::new();
    for id in named(&directory, RECORD)? {
        let Ok(text) = fs::read(directory.join(format!("{id}.json"))) else { continue };
        let Ok(record) = serde_json::from_slice::<Layers>(&text) else { return Ok(None) };
        layers.extend(record.layers);
    }
    Ok(Some(layers))
}
