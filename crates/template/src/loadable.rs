//! An image rewritten for loading into an engine: it contains only validated parts, and no name.
//!
//! Engines take image names from archives. Every later `FROM`, and every container started from such a name,
//! would then use the archive's image. Third-party archives are therefore never passed to an engine. The
//! image is written to a new archive, in the format of `docker save`, which all engines read.

use std::fs::File;
use std::io;
use std::path::Path;

use host::error::Error;
use serde_json::json;

use crate::image::Image;
use crate::package::Package;
use crate::{check_room, failed};

/// The name of the configuration in the archive.
const CONFIGURATION: &str = "config.json";

/// Writes an image without its names to a temporary file. Returns the file, positioned at its beginning.
pub(super) fn written(data: &Path, package: &Package, image: &Image) -> Result<File, Error> {
    let path = data.join(format!("engine/loading-{}", host::machine::fresh_id()?));
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create_new(true).open(&path).map_err(failed("create", &path))?;
    // The file is unlinked at once, so that it cannot be left behind, whatever happens next.
    std::fs::remove_file(&path).map_err(failed("remove", &path))?;
    let mut archive = tar::Builder::new(&mut file);
    let mut names = Vec::new();
    for (number, layer) in image.layers.iter().enumerate() {
        let blob = package.blob(&layer.blob)?;
        check_room(&path, blob.size)?;
        let name = format!("layer-{number}.tar");
        archive.append_data(&mut header(blob.size), &name, blob).map_err(failed("write", &path))?;
        names.push(name);
    }
    let manifest = json!([{ "Config": CONFIGURATION, "RepoTags": null, "Layers": names }]).to_string();
    for (name, text) in
        [(CONFIGURATION, image.configuration.as_slice()), ("manifest.json", manifest.as_bytes())]
    {
        archive.append_data(&mut header(text.len() as u64), name, text).map_err(failed("write", &path))?;
    }
    archive.into_inner().map_err(failed("write", &path))?;
    io::Seek::rewind(&mut file).map_err(failed("read", &path))?;
    Ok(file)
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(size);
    header
}
