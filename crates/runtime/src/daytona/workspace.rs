//! One workspace: creating, querying and removing it. Commands run in it through its [`agent`].

mod agent;

use std::collections::HashMap;
use std::time::Duration;

use api::SandboxId;
use api::limits::Limits;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

pub(super) use agent::CommandResult;

use super::account::Account;
use crate::{Error, Spec};

/// Labels that hold the owner of a workspace and the ID of its sandbox.
const OWNER: &str = "dev.bellglass.owner";
const SANDBOX: &str = "dev.bellglass.sandbox";
/// Page size of a listing, and the maximum number of pages, which is more than any account needs.
const PAGE: usize = 100;
const PAGES_MAX: usize = 1000;
/// Number of minutes between the end of the sandbox's time to live and Daytona's automatic removal of the
/// workspace.
const LEFT_MINUTES: u64 = 5;
const GIB: u64 = 1 << 30;
/// HTTP statuses after which a removal request may be sent again.
const AGAIN: [StatusCode; 3] = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
/// Daytona's description of a workspace.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Workspace {
    id: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    error_reason: Option<String>,
    #[serde(default)]
    labels: HashMap<String, String>,
    /// Number of cores. The next field is the memory size in GiB.
    #[serde(default)]
    cpu: u64,
    #[serde(default)]
    memory: u64,
    #[serde(default)]
    toolbox_proxy_url: String,
}

/// A page of a listing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkspacePage {
    items: Vec<Workspace>,
    #[serde(default)]
    next_cursor: Option<String>,
}

fn name(id: &SandboxId) -> String {
    format!("bellglass-{id}")
}

impl Workspace {
    /// Creates a workspace.
    pub async fn make(account: &Account, id: &SandboxId, owner: &str, spec: &Spec) -> Result<Self, Error> {
        let ttl_minutes = spec.limits.ttl_ms.div_ceil(60_000) + LEFT_MINUTES;
        let mut body = json!({
            "name": name(id),
            "snapshot": spec.image,
            "labels": { OWNER: owner, SANDBOX: id.as_str() },
            "public": false,
            "networkBlockAll": true,
            // These settings are a safety net: Daytona removes the workspace even if this node never comes
            // back. It does so when the workspace reaches this age or, on servers that do not support an age
            // limit, after the workspace has been idle for this time.
            "ttlMinutes": ttl_minutes,
            "autoStopInterval": ttl_minutes,
            "autoDeleteInterval": 0,
        });
        if let (Some(target), Some(body)) = (&account.target, body.as_object_mut()) {
            body.insert("target".into(), json!(target));
        }
        let act = "create a workspace";
        let request = account.ask(Method::POST, "/sandbox").header("content-type", "application/json");
        match account.send(act, request.body(body.to_string()), Duration::ZERO).await? {
            Ok(response) => account.read(act, response).await,
            // A workspace that belongs to a different data directory has this name. It must not be removed.
            Err(refusal) if refusal.status == StatusCode::CONFLICT => Err(Error::Exists(id.clone())),
            Err(refusal) if refusal.said.contains("napshot") => Err(Error::Unavailable {
                what: "Daytona has no snapshot for this template".into(),
                why: format!("it returned {}: {}", refusal.status.as_u16(), refusal.said),
                fix: format!(
                    "Push a snapshot from the template's image, with `USER root`: `daytona snapshot push IMAGE --name {}`.",
                    spec.image
                ),
            }),
            Err(refusal) => Err(account.failed(act, &refusal)),
        }
    }

    /// Returns a sandbox's workspace, regardless of the workspace's owner.
    pub async fn find(account: &Account, id: &SandboxId) -> Result<Option<Self>, Error> {
        Self::look(account, &name(id)).await
    }

    /// Returns the current state of this workspace, or `None` if it no longer exists.
    pub async fn look_again(&self, account: &Account) -> Result<Option<Self>, Error> {
        Self::look(account, &self.id).await
    }

    async fn look(account: &Account, name: &str) -> Result<Option<Self>, Error> {
        let act = "find a workspace";
        let request = account.ask(Method::GET, &format!("/sandbox/{name}"));
        match account.send(act, request, Duration::ZERO).await? {
            Ok(response) => account.read(act, response).await.map(Some),
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(None),
            Err(refusal) => Err(account.failed(act, &refusal)),
        }
    }

    /// Returns the workspaces of an owner, or only the workspaces of one of the owner's sandboxes. Stops when
    /// about `most` workspaces have been found.
    pub async fn all(
        account: &Account,
        owner: &str,
        of: Option<&SandboxId>,
        most: usize,
    ) -> Result<Vec<Self>, Error> {
        let act = "list workspaces";
        let labels = match of {
            Some(id) => json!({ OWNER: owner, SANDBOX: id.as_str() }),
            None => json!({ OWNER: owner }),
        }
        .to_string();
        let (mut found, mut cursor) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let limit = PAGE.min(most).to_string();
            let query = [("labels", labels.as_str()), ("limit", &limit), ("cursor", &cursor)];
            let query = query.iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>();
            let request = account.ask(Method::GET, "/sandbox").query(&query);
            let page: WorkspacePage =
                account.read(act, account.done(act, request, Duration::ZERO).await?).await?;
            found.extend(page.items);
            match page.next_cursor.filter(|next| !next.is_empty() && found.len() < most) {
                Some(next) => cursor = next,
                None => return Ok(found),
            }
        }
        Err(Error::Unavailable {
            what: format!("Daytona failed to {act}"),
            why: format!("the list has more than {PAGES_MAX} pages"),
            fix: "Remove unused workspaces, or use another account.".into(),
        })
    }

    /// Returns true if the workspace belongs to this owner.
    pub fn is_of(&self, owner: &str) -> bool {
        self.labels.get(OWNER).is_some_and(|named| named == owner)
    }

    /// Returns the ID of the workspace's sandbox.
    pub fn sandbox(&self) -> Option<SandboxId> {
        self.labels.get(SANDBOX)?.parse().ok()
    }

    /// Returns true if commands can run in the workspace.
    pub fn is_running(&self) -> bool {
        self.state == "started"
    }

    /// Returns true if no command will ever run in the workspace again.
    pub fn is_over(&self) -> bool {
        ["archived", "build_failed", "destroyed", "destroying", "error", "stopped"]
            .contains(&self.state.as_str())
    }

    /// Returns true if the workspace has been removed, even if Daytona still lists it.
    pub fn is_removed(&self) -> bool {
        self.state == "destroyed"
    }

    /// Returns true if the workspace is being removed.
    pub fn is_being_removed(&self) -> bool {
        self.state == "destroying"
    }

    /// Returns true if the workspace is running. Fails if it will never run.
    pub fn has_begun(&self) -> Result<bool, Error> {
        if self.is_over() {
            let reason = self.error_reason.as_deref().unwrap_or("no reason given");
            return Err(Error::Unavailable {
                what: "Daytona failed to start a workspace".into(),
                why: format!("the state of the workspace is {}: {reason}", self.state),
                fix: "Fix the reported cause, then try again.".into(),
            });
        }
        Ok(self.is_running())
    }

    /// Checks that this workspace can provide the limits while `own` bytes of its memory stay unavailable to
    /// user code.
    pub fn check(&self, limits: &Limits, own: u64) -> Result<(), Error> {
        let (memory, cpu) = (self.memory.saturating_mul(GIB), self.cpu.saturating_mul(1000));
        if limits.memory_bytes + own > memory {
            return Err(Error::Unsupported {
                what: "memory_bytes",
                why: format!(
                    "workspaces of this snapshot have {memory} bytes of memory, of which {own} are not available to user code, but {} were requested; request less, or create the snapshot with more memory",
                    limits.memory_bytes
                ),
            });
        }
        if limits.cpu_millis > cpu {
            return Err(Error::Unsupported {
                what: "cpu_millis",
                why: format!(
                    "workspaces of this snapshot have {cpu} millicores, but {} were requested; request less, or create the snapshot with more cores",
                    limits.cpu_millis
                ),
            });
        }
        Ok(())
    }

    /// Requests the workspace's removal. Also succeeds if the removal is not possible now, so the caller
    /// repeats the request.
    pub async fn remove(&self, account: &Account) -> Result<(), Error> {
        let act = "remove a workspace";
        let request = account.ask(Method::DELETE, &format!("/sandbox/{}", self.id));
        match account.send(act, request, Duration::ZERO).await? {
            Ok(_) => Ok(()),
            // The workspace is already gone or is changing its state, the rate limit was reached, or the
            // server failed. A later request may succeed.
            Err(refusal) if AGAIN.contains(&refusal.status) || refusal.status.is_server_error() => Ok(()),
            Err(refusal) => Err(account.failed(act, &refusal)),
        }
    }
}

/// Returns true if a snapshot with this name exists.
pub(super) async fn has_snapshot(account: &Account, name: &str) -> Result<bool, Error> {
    let act = "find a snapshot";
    let mut url = reqwest::Url::parse(account.address())
        .map_err(|error| Error::System { act: act.to_owned(), source: std::io::Error::other(error) })?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["snapshots", name]);
    }
    match account.send(act, account.at(Method::GET, url.as_str()), Duration::ZERO).await? {
        Ok(_) => Ok(true),
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(false),
        Err(refusal) => Err(account.failed(act, &refusal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn workspace(state: &str, toolbox: &str) -> Workspace {
        let said = json!({ "id": "w", "state": state, "cpu": 2, "memory": 1, "toolboxProxyUrl": toolbox });
        serde_json::from_value(said).unwrap()
    }

    #[test]
    fn what_a_workspace_cannot_hold_is_refused_by_its_name() {
        let workspace = workspace("started", "");
        let limits = Limits::default();
        assert!(workspace.check(&limits, 128 << 20).is_ok());
        for (limits, name) in [
            (Limits { memory_bytes: GIB, ..limits }, "memory_bytes"),
            (Limits { cpu_millis: 4000, ..limits }, "cpu_millis"),
        ] {
            let error = workspace.check(&limits, 128 << 20).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{name} is not supported here")), "{error}");
        }
    }

    #[test]
    fn only_what_never_begins_is_given_up() {
        for state in ["error", "build_failed", "stopped", "destroyed"] {
            assert!(workspace(state, "").has_begun().is_err(), "{state}");
        }
        for state in ["creating", "pulling_snapshot", "starting", "a state of tomorrow"] {
            assert!(!workspace(state, "").has_begun().unwrap(), "{state}");
        }
        assert!(workspace("started", "").has_begun().unwrap());
    }
}
