//! Additions to the last layer of an image: mount points, the user that code runs as, and the sandbox's host
//! names.

use std::io::Read;

use api::Error;
use api::limits::{UID, USER};

use super::entry::Meta;
use super::merged::{Canonical, Thing};
use super::name::{Name, PathComponent, RESERVED};
use super::refusal::{platform, refused};
use super::tree::{EntryLocation, Tree};

/// Maximum size of a user or group list. The longest lists in use have a few hundred lines.
const LIST_BYTES_MAX: u64 = 1 << 20;
/// Directories and the file that only the guest uses. They serve as mount points when a sandbox starts.
const OWN_DIRECTORIES: [&str; 2] = [".bellglass/channel", ".bellglass/spool"];
const OWN_FILE: &str = ".bellglass/guest";

const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const HOSTNAME: &str = "sandbox\n";
/// Files that would give the same machine identity to all sandboxes of the image. They are emptied if they
/// exist.
const IDENTITIES: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];

/// Entries that give the sandbox's user a different name, `user`. A recipe step for clients of E2B's SDKs
/// writes exactly these entries. Any other entry with this uid belongs to an unrelated user of the image.
const RENAMED: [&str; 2] = ["user:x:1000:1000:user:/home/user:/bin/bash", "user:x:1000:"];

/// Completes the last layer of an image.
pub fn finish(tree: &Tree) -> Result<(), Error> {
    tree.root(owned(0o755))?;
    for path in RESERVED.into_iter().chain(OWN_DIRECTORIES) {
        let mode = if path == "tmp" { 0o1777 } else { 0o755 };
        tree.directory(&own_place(tree, path)?, owned(mode))?;
    }
    tree.file(&own_place(tree, OWN_FILE)?, owned(0o755), 0, &mut std::io::empty())?;
    let home = format!("/home/{USER}");
    let root = "root:x:0:0:root:/root:/bin/sh";
    let user = format!("{USER}:x:{UID}:{UID}:{USER}:{home}:/bin/sh");
    list(tree, "etc/passwd", root, &user)?;
    list(tree, "etc/group", "root:x:0:", &format!("{USER}:x:{UID}:"))?;
    write(tree, "etc/hosts", HOSTS)?;
    write(tree, "etc/hostname", HOSTNAME)?;
    // Empty this file, so that it does not keep the name servers of the machine that built the image.
    write(tree, "etc/resolv.conf", "")?;
    for path in IDENTITIES {
        let (place, there) = find(tree, path)?;
        if matches!(there, Some((_, Thing::File(_)))) {
            tree.file(&place, owned(0o444), 0, &mut std::io::empty())?;
        }
    }
    Ok(())
}

/// Writes a user or group list: the image's entries plus the entry of the sandbox's user, which replaces
/// entries with the same name or ID.
fn list(tree: &Tree, path: &str, first: &str, ours: &str) -> Result<(), Error> {
    let (place, there) = find(tree, path)?;
    let mut text = Vec::new();
    if let Some((level, Thing::File(_))) = there {
        let file = std::fs::File::from(tree.merged().open(level, &place.path)?);
        let read = file.take(LIST_BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| platform("read a user or group file", &error))?;
        if text.len() as u64 > LIST_BYTES_MAX {
            return Err(refused(path.as_bytes(), "is too long"));
        }
    }
    let text = with_user(&String::from_utf8_lossy(&text), first, ours);
    tree.file(&place, owned(0o644), text.len() as u64, &mut text.as_bytes())
}

fn with_user(text: &str, first: &str, ours: &str) -> String {
    let field = |line: &str, index: usize| line.split(':').nth(index).unwrap_or_default().to_owned();
    let same =
        |line: &str, other: &str| field(line, 0) == field(other, 0) || field(line, 2) == field(other, 2);
    let ours = text.lines().find(|line| RENAMED.contains(line)).unwrap_or(ours);
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !same(line, ours)).collect();
    if !lines.iter().any(|line| field(line, 0) == field(first, 0)) {
        lines.insert(0, first);
    }
    lines.push(ours);
    lines.join("\n") + "\n"
}

fn write(tree: &Tree, path: &str, text: &str) -> Result<(), Error> {
    let (place, _) = find(tree, path)?;
    tree.file(&place, owned(0o644), text.len() as u64, &mut text.as_bytes())
}

/// Resolves a path in the image. Returns its location, and the file there if one exists.
fn find(tree: &Tree, path: &str) -> Result<(EntryLocation, Option<(usize, Thing)>), Error> {
    let name = Name::parse(path.as_bytes())?;
    let lost = || refused(path.as_bytes(), "has no valid location");
    let (parents, last) = name.split().ok_or_else(lost)?;
    let Canonical::Path(mut path) = tree.merged().canonical(parents)? else { return Err(lost()) };
    let directory = tree.directory_at(&path)?;
    path.push(last.clone());
    let there = tree.merged().look(&path)?;
    Ok((EntryLocation { directory, path }, there))
}

/// Returns the location of a path that an image cannot influence, so the path contains no symlink.
fn own_place(tree: &Tree, path: &str) -> Result<EntryLocation, Error> {
    let path: Vec<PathComponent> = path.split('/').map(|part| part.as_bytes().to_vec()).collect();
    let directory = tree.directory_at(path.get(..path.len().saturating_sub(1)).unwrap_or_default())?;
    Ok(EntryLocation { directory, path })
}

fn owned(mode: u32) -> Meta {
    Meta { mode, uid: 0, gid: 0, mtime: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "root:x:0:0:root:/root:/bin/sh";
    const OURS: &str = "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh";

    #[test]
    fn the_user_is_there_once_whatever_the_image_had() {
        let text =
            "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/sh\nsandbox:x:7:7::/:/x\n\n";
        assert_eq!(with_user(text, ROOT, OURS), format!("root:x:0:0:root:/root:/bin/bash\n{OURS}\n"));
        assert_eq!(with_user("", ROOT, OURS), format!("{ROOT}\n{OURS}\n"));
        let renamed = format!("{ROOT}\n{}\n", RENAMED[0]);
        assert_eq!(with_user(&renamed, ROOT, OURS), renamed, "a recipe may rename it");
        assert_eq!(with_user(&renamed.replace("bash", "sh"), ROOT, OURS), format!("{ROOT}\n{OURS}\n"));
        assert_eq!(
            with_user("a:x:5:", "root:x:0:", "sandbox:x:1000:"),
            "root:x:0:\na:x:5:\nsandbox:x:1000:\n"
        );
    }
}
