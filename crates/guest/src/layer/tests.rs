//! Tests with untrusted layers: each either unpacks inside its directory, or is refused with a reason.

mod archive;
mod formats;
mod fuzz;
mod rules;

use std::fs;
use std::io::Cursor;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use api::layer::{Compression, LayerReport};
use api::{Error, ErrorCode};
use tempfile::TempDir;

use super::source::Fault;
use super::{UnpackRequest, unpack};
use archive::Archive;

/// A directory with layers, and files outside them that must not change.
struct Bench {
    directory: TempDir,
    done: Vec<PathBuf>,
    outside: Vec<(PathBuf, u32, Vec<u8>)>,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o751)).unwrap();
        fs::write(outside.join("file"), "untouched").unwrap();
        let mut bench = Self { directory, done: Vec::new(), outside: Vec::new() };
        bench.outside = bench.look_outside();
        bench
    }

    /// Returns the path of the directory outside the layers, for use in malicious archives.
    fn outside(&self) -> String {
        self.directory.path().join("outside").to_str().unwrap().to_owned()
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("layer{number}"))
    }

    /// Unpacks a layer on top of the earlier layers.
    fn layer_with(&mut self, archive: &Archive) -> Result<LayerReport, Error> {
        self.packed(&archive.bytes, Compression::None, false)
    }

    fn packed(&mut self, bytes: &[u8], compression: Compression, top: bool) -> Result<LayerReport, Error> {
        let target = self.layer(self.done.len());
        let _ = fs::remove_dir_all(&target);
        fs::create_dir(&target).unwrap();
        let open = |path: &PathBuf| OwnedFd::from(fs::File::open(path).unwrap());
        let layers = self.done.iter().chain([&target]).map(open).collect();
        let order = UnpackRequest { compression, top, done: self.done.len() };
        let report = unpack(Cursor::new(bytes), Fault::default(), order, layers);
        assert_eq!(self.look_outside(), self.outside, "something outside changed");
        if report.is_ok() {
            self.done.push(target);
        }
        report
    }

    /// Returns the path of the last unpacked layer.
    fn top(&self) -> &Path {
        self.done.last().unwrap()
    }

    fn look_outside(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let outside = self.directory.path().join("outside");
        let mut seen = vec![(outside.clone(), fs::metadata(&outside).unwrap().mode(), Vec::new())];
        for entry in fs::read_dir(&outside).unwrap() {
            let path = entry.unwrap().path();
            seen.push((path.clone(), fs::metadata(&path).unwrap().mode(), fs::read(&path).unwrap()));
        }
        seen.sort();
        seen
    }
}

fn unpacked(archive: &Archive) -> (Bench, LayerReport) {
    let mut bench = Bench::new();
    let report = bench.layer_with(archive).unwrap();
    (bench, report)
}

fn refusal(archive: &Archive) -> Error {
    Bench::new().layer_with(archive).unwrap_err()
}
