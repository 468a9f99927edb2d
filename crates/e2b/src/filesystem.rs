//! File operations by path: `filesystem.Filesystem` of E2B's agent, without watchers.

use api::files::{DEPTH_MAX, FileAnswer, FileAsk, FileInfo, FileKind, FilePath, PAGE_MAX};
use api::limits::UID;
use axum::Json;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use control::audit::Act;
use server::list::Listing;

use super::connect::{Called, Code, ConnectMessage, Failed};
use super::place::{name, path};
use super::shown::put;
use super::time::rfc3339;
use super::who::Inside;

/// Maximum number of entries in one response.
const ENTRIES_MAX: usize = 50_000;
/// Maximum size of a list of entries. With short paths, 45,000 entries fit.
const LIST_BYTES_MAX: usize = 12 << 20;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct PathRequest {
    path: String,
    depth: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Between {
    source: String,
    destination: String,
}

impl Inside {
    /// Parses a path from a client, which is absolute or relative to the user's home directory.
    ///
    /// # Errors
    /// Returns an error if the path is invalid.
    pub fn path(&self, text: &str) -> Called<FilePath> {
        Ok(path(text, &self.home)?)
    }

    /// Sends a file request that does not change any file.
    pub(super) async fn look(&self, ask: &FileAsk) -> Called<FileAnswer> {
        let _place = self.caller.share.stream()?;
        Ok(self.call.files().ask(ask).await?)
    }

    /// Returns the entry at a path in E2B's representation. A symbolic link gets the kind of its target.
    pub(super) async fn entry(&self, path: FilePath) -> Called<Value> {
        let answer = self.look(&FileAsk::Stat { path }).await?;
        let FileAnswer::Info { info } = answer else { return Err(unlike(&answer)) };
        Ok(self.shown(&info).await)
    }

    /// Sends a file request that makes a change, and records it in the audit log. The request completes even
    /// if the client disconnects.
    async fn change(&self, act: Act, detail: &str, ask: FileAsk) -> Called<u64> {
        let place = self.caller.share.stream()?;
        self.platform.note(&self.caller, act, |entry| entry.sandbox(&self.sandbox).detail(detail));
        let files = self.call.files();
        let asking = tokio::spawn(async move {
            let _place = place;
            files.ask(&ask).await
        });
        let failed = |source: tokio::task::JoinError| node::Error::System {
            act: "change a file".into(),
            source: source.into(),
        };
        let answer = asking.await.map_err(failed)??;
        let FileAnswer::Done { count } = answer else { return Err(unlike(&answer)) };
        Ok(count)
    }

    async fn shown(&self, info: &FileInfo) -> Value {
        let kind = match (&info.kind, &info.target) {
            (FileKind::Symlink, Some(target)) => self.led_to(&info.path, target).await,
            (kind, _) => *kind,
        };
        entry(info, kind)
    }

    /// Returns the kind of a symbolic link's target, or `Symlink` if the target does not exist or is a link
    /// too.
    async fn led_to(&self, link: &str, target: &str) -> FileKind {
        let Ok(path) = FilePath::new(followed(link, target)) else { return FileKind::Symlink };
        match self.look(&FileAsk::Stat { path }).await {
            Ok(FileAnswer::Info { info }) => info.kind,
            Ok(_) | Err(_) => FileKind::Symlink,
        }
    }
}

/// Returns the entry at a path.
pub async fn stat(inside: Inside, ConnectMessage(at): ConnectMessage<PathRequest>) -> Called<Json<Value>> {
    let path = inside.path(&at.path)?;
    Ok(Json(json!({ "entry": inside.entry(path).await? })))
}

/// Creates a directory, and its parents if they are missing.
pub async fn make(inside: Inside, ConnectMessage(at): ConnectMessage<PathRequest>) -> Called<Json<Value>> {
    let path = inside.path(&at.path)?;
    let ask = FileAsk::Make { path: path.clone() };
    if inside.change(Act::FileMake, &path.encode(), ask).await? == 0 {
        return Err(Failed::of(Code::AlreadyExists, format!("directory already exists: {}", path.text())));
    }
    Ok(Json(json!({ "entry": inside.entry(path).await? })))
}

/// Moves a file or directory, and creates the parent directories of the new path.
pub async fn rename(inside: Inside, ConnectMessage(at): ConnectMessage<Between>) -> Called<Json<Value>> {
    let (from, to) = (inside.path(&at.source)?, inside.path(&at.destination)?);
    let detail = format!("{} to {}", from.encode(), to.encode());
    let above = to.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or_default();
    if let Some(above) = to.as_bytes().get(..above).filter(|above| !above.is_empty()) {
        // Check that the source exists before creating any parent directory for the destination.
        inside.look(&FileAsk::Stat { path: from.clone() }).await?;
        let above = FilePath::new(above)?;
        inside.change(Act::FileMake, &above.encode(), FileAsk::Make { path: above }).await?;
    }
    inside.change(Act::FileMove, &detail, FileAsk::Move { from, to: to.clone(), replace: true }).await?;
    Ok(Json(json!({ "entry": inside.entry(to).await? })))
}

/// Lists a directory.
pub async fn list(inside: Inside, ConnectMessage(at): ConnectMessage<PathRequest>) -> Called<Response> {
    let path = inside.path(&at.path)?;
    let depth = at.depth.clamp(1, DEPTH_MAX);
    let reading = Listing::of_guest(&inside.caller.share).await?;
    // Entries are encoded at once, because as values they would take ten times the memory.
    let (mut after, mut count, mut text) = (None, 0, br#"{"entries":["#.to_vec());
    loop {
        let ask = FileAsk::List { path: path.clone(), depth, after, limit: PAGE_MAX };
        let page = inside.look(&ask).await.map_err(|failed| match failed {
            Failed::Refused(Code::FailedPrecondition, told) => Failed::of(Code::InvalidArgument, told),
            failed @ (Failed::Refused(..) | Failed::Gone) => failed,
        });
        let FileAnswer::Page { items, more } = page? else {
            return Err(Failed::of(Code::Internal, "unexpected type of response"));
        };
        for info in &items {
            if count > 0 {
                text.push(b',');
            }
            text.extend(inside.shown(info).await.to_string().bytes());
            count += 1;
            if text.len() > LIST_BYTES_MAX {
                let told = format!(
                    "the list is larger than {} MiB; list fewer directories per request",
                    LIST_BYTES_MAX >> 20
                );
                return Err(Failed::of(Code::ResourceExhausted, told));
            }
        }
        let last = items.last().map(FileInfo::exact).transpose()?;
        match last {
            Some(last) if more => after = Some(last),
            Some(_) | None => break,
        }
        if count > ENTRIES_MAX {
            let told = format!("more than {ENTRIES_MAX} entries; list fewer directories per request");
            return Err(Failed::of(Code::ResourceExhausted, told));
        }
    }
    text.extend(b"]}");
    Ok(reading.respond_encoded(text)?)
}

/// Removes a file, or a directory with its contents. Succeeds if the path does not exist.
pub async fn remove(inside: Inside, ConnectMessage(at): ConnectMessage<PathRequest>) -> Called<Json<Value>> {
    let path = inside.path(&at.path)?;
    let detail = path.encode();
    inside.change(Act::FileRemove, &detail, FileAsk::Remove { path, all: true }).await?;
    Ok(Json(json!({})))
}

/// Converts an entry into E2B's representation.
fn entry(info: &FileInfo, kind: FileKind) -> Value {
    let kind = match kind {
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Symlink => "FILE_TYPE_SYMLINK",
        FileKind::File | FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => {
            "FILE_TYPE_FILE"
        }
    };
    let mut shown = json!({
        "name": name(&info.path),
        "type": kind,
        "path": info.path,
        "size": info.size_bytes.to_string(),
        "mode": info.mode,
        "permissions": permissions(info),
        "owner": owner(info.uid),
        "group": owner(info.gid),
        "modifiedTime": rfc3339(info.modified_at_ms.max(0).unsigned_abs()),
    });
    if let Some(target) = &info.target {
        put(&mut shown, "symlinkTarget", target.as_str().into());
        put(&mut shown, "isSymlink", true.into());
    }
    shown
}

/// Formats permissions as `ls` does.
fn permissions(info: &FileInfo) -> String {
    let kind = match info.kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Device => 'c',
        FileKind::File | FileKind::Unknown => '-',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    std::iter::once(kind)
        .chain(bits.map(|(bit, letter)| if info.mode >> bit & 1 == 1 { letter } else { '-' }))
        .collect()
}

fn owner(id: u32) -> String {
    match id {
        0 => "root".into(),
        UID => "user".into(),
        other => other.to_string(),
    }
}

/// Returns the absolute path of a symbolic link's target.
pub(super) fn followed(link: &str, target: &str) -> String {
    let above = link.rsplit_once('/').map(|(above, _)| above).unwrap_or_default();
    let whole = if target.starts_with('/') { target.to_owned() } else { format!("{above}/{target}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn unlike(answer: &FileAnswer) -> Failed {
    let told: String = format!("{answer:?}").chars().take_while(|c| c.is_alphabetic()).collect();
    node::Error::Protocol(format!("unexpected type of response: {told}")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_as_the_sdks_read_it() {
        let info = FileInfo {
            path: "/home/user/a".into(),
            path_encoded: None,
            kind: FileKind::Directory,
            size_bytes: 5_000_000_000,
            mode: 0o750,
            uid: UID,
            gid: 0,
            modified_at_ms: 0,
            version: String::new(),
            target: None,
            error: None,
        };
        let shown = entry(&info, info.kind);
        assert_eq!(shown["permissions"], "drwxr-x---");
        assert_eq!((&shown["name"], &shown["size"]), (&json!("a"), &json!("5000000000")));
        assert_eq!((&shown["owner"], &shown["group"]), (&json!("user"), &json!("root")));
        assert_eq!(shown["type"], "FILE_TYPE_DIRECTORY");
    }

    #[test]
    fn a_link_leads_where_its_text_says() {
        assert_eq!(followed("/a/b", "c"), "/a/c");
        assert_eq!(followed("/a/b", "../../c"), "/c");
        assert_eq!(followed("/a/b", "/x/./y"), "/x/y");
    }
}
