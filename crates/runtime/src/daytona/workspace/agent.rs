//! Daytona's agent in a workspace: running commands, and uploading files.

use std::path::Path;
use std::time::Duration;

use api::walls::Walls;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde::Deserialize;
use serde_json::json;

use super::Workspace;
use crate::daytona::account::{self, Account};
use crate::{Error, files};

/// Exit code of the first shell command if the shell is not running as root.
const NOT_ROOT: i64 = 3;
/// Timeout for a command, in addition to the time that its caller allows.
const SAYS_WITHIN: Duration = Duration::from_secs(20);

/// Result of a command in a workspace.
#[derive(Deserialize)]
pub(in crate::daytona) struct CommandResult {
    /// The command's exit code.
    #[serde(rename = "exitCode", default = "unknown")]
    pub code: i64,
    /// The command's output.
    #[serde(rename = "result", default)]
    pub said: String,
}

fn unknown() -> i64 {
    -1
}

impl Workspace {
    /// Uploads the guest and its isolation settings.
    pub async fn put_in(&self, account: &Account, guest: &Path, walls: &Walls) -> Result<(), Error> {
        // The agent runs as the user that the image specifies, and only root can apply the isolation
        // settings.
        let ready = format!(
            "[ \"$(id -u)\" = 0 ] || exit {NOT_ROOT}; mkdir -p -m 0755 /.bellglass && rm -rf /.bellglass/*"
        );
        let ran = self.run(account, &ready, Duration::ZERO).await?;
        if ran.code != 0 {
            return Err(not_ready(&ran));
        }
        let program = std::fs::read(guest).map_err(|source| files::failed("read", guest, source))?;
        let walls = serde_json::to_vec(walls).map_err(|error| Error::System {
            act: "serialize the isolation settings".into(),
            source: error.into(),
        })?;
        let mut form = Form::new();
        for (number, (path, content)) in
            [("/.bellglass/guest", program), ("/.bellglass/walls.json", walls)].into_iter().enumerate()
        {
            form = form
                .text(format!("files[{number}].path"), path)
                .part(format!("files[{number}].file"), Part::bytes(content).file_name(path));
        }
        let request = account.at(Method::POST, &self.toolbox("/files/bulk-upload")?).multipart(form);
        account.done("upload the guest", request, Duration::from_secs(240)).await.map(|_| ())
    }

    /// Makes the guest apply its isolation settings and start process 1 inside them.
    pub async fn begin(&self, account: &Account, ttl_ms: u64) -> Result<(), Error> {
        let words = format!(
            "cd / && chmod 0755 /.bellglass/guest && exec env -i PATH=/usr/bin:/bin /.bellglass/guest init --ttl-ms {ttl_ms} --walls"
        );
        let CommandResult { code, said } = self.run(account, &words, Duration::ZERO).await?;
        if code == 0 {
            return Ok(());
        }
        Err(Error::Unavailable {
            what: "the Daytona workspace cannot be isolated".into(),
            why: format!("the guest exited with {code}: {}", said.trim()),
            fix: "Use container workspaces without GPU on Linux 5.14 or later, or use another backend."
                .into(),
        })
    }

    /// Runs a shell command in the workspace, as root.
    pub async fn run(
        &self,
        account: &Account,
        words: &str,
        longer: Duration,
    ) -> Result<CommandResult, Error> {
        let act = "run a command in the workspace";
        let within = SAYS_WITHIN + longer;
        let body = json!({ "command": words, "cwd": "/", "timeout": within.as_secs() });
        let request = account
            .at(Method::POST, &self.toolbox("/process/execute")?)
            .header("content-type", "application/json");
        account.read(act, account.done(act, request.body(body.to_string()), within).await?).await
    }

    /// Returns the URL of this path on the workspace's agent. Fails if requests to the URL could be read in
    /// transit, because they contain the API key.
    pub fn toolbox(&self, path: &str) -> Result<String, Error> {
        let url = format!("{}/{}{path}", self.toolbox_proxy_url.trim_end_matches('/'), self.id);
        match account::is_private(&url) {
            true => Ok(url),
            false => Err(Error::Unavailable {
                what: "the agent of the Daytona workspace cannot be used".into(),
                why: format!("its URL {} does not use https", self.toolbox_proxy_url),
                fix: "Configure Daytona's proxy to serve https.".into(),
            }),
        }
    }
}

/// Builds the error for a workspace where the guest cannot be installed.
fn not_ready(CommandResult { code, said }: &CommandResult) -> Error {
    let (why, fix) = match *code {
        NOT_ROOT => (
            "its processes do not run as root".to_owned(),
            "Create the snapshot from an image that ends with `USER root`; user code does not run as root.",
        ),
        code => (
            format!("its shell exited with {code} while creating /.bellglass: {}", said.trim()),
            "Create the snapshot from an image with a working shell and a writable root directory, or use another backend.",
        ),
    };
    Error::Unavailable { what: "the Daytona workspace cannot be isolated".into(), why, fix: fix.into() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::workspace;
    use super::*;

    #[test]
    fn the_key_is_not_sent_to_an_agent_without_https() {
        assert_eq!(workspace("started", "https://proxy/x/").toolbox("/y").unwrap(), "https://proxy/x/w/y");
        for url in ["http://proxy.example.org/toolbox", ""] {
            assert!(workspace("started", url).toolbox("/process/execute").is_err(), "{url}");
        }
    }

    #[test]
    fn a_shell_that_failed_is_not_taken_for_one_that_is_not_roots() {
        let told = |code, said: &str| not_ready(&CommandResult { code, said: said.into() }).to_string();
        assert!(told(NOT_ROOT, "").ends_with("its processes do not run as root"));
        assert!(told(1, "mkdir: Read-only file system\n").ends_with("mkdir: Read-only file system"));
    }
}
