//! `bellglass ls`: lists files in a sandbox.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

use api::files::{FileInfo, FileKind, FilePath};
use api::{Error, SandboxId};

use crate::command::list;
use crate::connect::{ServerConnection, answer};
use crate::{quantity, show};

/// Arguments of `bellglass ls`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  bellglass ls build\n  bellglass ls -l build /workspace/src\n  \
    bellglass ls --depth 3 --json build | jq -r '.[].path'")]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Directory or file, relative to /workspace.
    #[arg(value_name = "PATH", default_value = ".")]
    path: OsString,
    /// Also show permissions, owner, size and age.
    #[arg(long, short = 'l')]
    long: bool,
    /// Number of directory levels to list.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    depth: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the files.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let files = client.files(&arguments.sandbox);
    let path = path(&arguments.path)?;
    let info = answer(&client, files.stat(&path)).await?;
    let (items, base) = match info.kind {
        // As with `ls`, a symlink named on the command line is followed if it leads to a directory.
        FileKind::Directory | FileKind::Symlink => {
            match answer(&client, files.list(&path, arguments.depth)).await {
                Err(_) if info.kind == FileKind::Symlink => (vec![info], String::new()),
                items => (items?, info.path.trim_end_matches('/').to_owned() + "/"),
            }
        }
        FileKind::File | FileKind::Fifo | FileKind::Socket | FileKind::Device | FileKind::Unknown => {
            (vec![info], String::new())
        }
    };
    if arguments.json {
        show::json(&items)?;
    } else if arguments.long {
        let rows: Vec<_> = items.iter().map(|info| row(info, &base)).collect();
        show::table(&["mode", "owner", "size", "age", "name"], &rows)?;
    } else {
        for info in &items {
            show::line(&show::escape(shown(info, &base)))?;
        }
    }
    let unseen = items.iter().filter(|info| info.error.is_some()).count();
    if unseen > 0 {
        show::note(&format!("{unseen} entries could not be read; --json shows why"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Converts a command-line argument to a path in a sandbox.
pub fn path(text: &OsString) -> Result<FilePath, Error> {
    FilePath::new(text.as_bytes())
}

fn row(info: &FileInfo, base: &str) -> Vec<String> {
    let target =
        info.target.as_ref().map(|target| format!(" -> {}", show::escape(target))).unwrap_or_default();
    let modified = u64::try_from(info.modified_at_ms).unwrap_or(0);
    vec![
        mode(info),
        format!("{}:{}", info.uid, info.gid),
        quantity::show_bytes(info.size_bytes),
        list::age(modified),
        show::escape(shown(info, base)) + &target,
    ]
}

/// Returns a path relative to the listed directory.
fn shown<'a>(info: &'a FileInfo, base: &str) -> &'a str {
    info.path.strip_prefix(base).unwrap_or(&info.path)
}

fn mode(info: &FileInfo) -> String {
    let kind = match info.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Device => 'c',
        FileKind::Unknown => '?',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    std::iter::once(kind)
        .chain(bits.map(|(bit, c)| if info.mode >> bit & 1 == 1 { c } else { '-' }))
        .collect()
}
