//! Images with paths that lead outside their layer: nothing outside the layer changes, and every image that
//! can be imported also runs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::image::Access;
use super::*;

/// Paths at which runtimes create something, in groups that fit into one image.
const PATHS: [&[&str]; 3] = [
    &["dev", "proc", "sys", "run", "tmp", "home", "workspace", ".bellglass"],
    &["etc"],
    &["dev/pts", "etc/resolv.conf", "etc/hosts"],
];

/// The kind of file that a hostile image contains at one of the paths.
#[derive(Clone, Copy, Debug)]
enum Form {
    Absolute,
    Relative,
    Dangling,
    File,
    Fifo,
    Device,
}

const FORMS: [Form; 6] =
    [Form::Absolute, Form::Relative, Form::Dangling, Form::File, Form::Fifo, Form::Device];

/// Returns the metadata and the content of every entry below a directory.
fn look(directory: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, i64, Vec<u8>)> {
    let mut seen = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        let status = fs::symlink_metadata(&path).unwrap();
        let content = if status.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if status.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        seen.insert(path, (status.mode(), status.uid(), status.ino(), status.ctime_nsec(), content));
    }
    seen
}

fn layer(layer: Layer, path: &str, form: Form, outside: &str) -> Layer {
    let up = "../".repeat(20);
    match form {
        Form::Absolute => layer.symlink(path, outside).file(&format!("{path}/planted"), 0o644, "x"),
        Form::Relative => layer.symlink(path, &format!("{up}{}", outside.trim_start_matches('/'))),
        Form::Dangling => layer.symlink(path, "nowhere/at/all"),
        Form::File => layer.file(path, 0o644, "x"),
        Form::Fifo => layer.entry(b'6', path, "", Access::of_root(0o644), b""),
        Form::Device => layer.entry(b'3', path, "", Access::of_root(0o666), b""),
    }
}

#[test]
#[ignore = "starts real sandboxes"]
fn no_path_of_an_image_leads_to_the_host() {
    on(&["runc"], async |lab| {
        let outside = tempfile::Builder::new().prefix("outside").tempdir().unwrap();
        fs::create_dir(outside.path().join("pts")).unwrap();
        for name in ["null", "resolv.conf", "hosts", "passwd", "guest"] {
            fs::write(outside.path().join(name), "untouched").unwrap();
        }
        let before = look(outside.path());
        let (mut ran, mut refused) = (0, 0);
        for paths in PATHS {
            for form in FORMS {
                let label = format!("{paths:?} as {form:?}");
                let add = |made, path: &&str| layer(made, path, form, outside.path().to_str().unwrap());
                let hostile = paths.iter().fold(Layer::new(), add);
                let directory = tempfile::tempdir().unwrap();
                Image::new(vec![Layer::programs(), hostile]).layout(directory.path());
                match import(lab, "hostile", directory.path()).await {
                    Err(error) => {
                        let error = error.to_api();
                        assert_eq!(error.code, ErrorCode::InvalidRequest, "{label}: {error:?}");
                        refused += 1;
                    }
                    Ok((template, _)) => {
                        let sandbox =
                            start(lab, &template).await.unwrap_or_else(|error| panic!("{label}: {error}"));
                        let script = "cat /proc/self/comm; ls -d /dev/null /tmp; echo x > /workspace/x; echo x > /tmp/x";
                        assert_eq!(
                            said(&sandbox, &template, script).await,
                            "cat\n/dev/null\n/tmp\n",
                            "{label}"
                        );
                        sandbox.stop(std::time::Duration::ZERO).await.unwrap();
                        ran += 1;
                    }
                }
                assert_eq!(look(outside.path()), before, "{label}");
            }
        }
        assert_eq!(half_made(lab), Vec::<String>::new());
        // The only image that is refused has a regular file at `etc`, which leaves no place for the files
        // that every sandbox needs there.
        assert_eq!((ran, refused), (PATHS.len() * FORMS.len() - 1, 1));
    });
}
