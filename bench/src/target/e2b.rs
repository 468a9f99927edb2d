//! Any server that implements E2B's protocol: REST for sandboxes, Connect with JSON for processes, and plain
//! HTTP for files and code.
//!
//! | variable | meaning |
//! |---|---|
//! | `E2B_API_KEY` | API key; if it is not set, the bench skips this target |
//! | `E2B_API_URL` | URL of the API; default: `https://api.` followed by the domain |
//! | `E2B_DOMAIN` | domain of the sandboxes, which have addresses of the form `PORT-ID.DOMAIN` |
//! | `E2B_SANDBOX_URL` | one URL for all sandboxes instead; headers then identify the sandbox |

mod connect;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::{Method, RequestBuilder, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Contexts, Execs, FileTransfers, Image, Made, NOTHING, Target, TargetFailure, TargetResources};
use crate::http;

/// Port of the program in a sandbox that starts processes and transfers files.
const ENVD: u16 = 49_983;
/// Port of the program in a sandbox that runs code.
const CODE: u16 = 49_999;
/// Timeout after which the server stops a sandbox left behind by a killed run.
const TIMEOUT_S: u64 = 1800;
/// Directory for transferred files in a sandbox.
const FILES: &str = "/tmp";
/// Maximum number of characters that a failure quotes from an error response.
const SHOWN: usize = 300;

/// Server that implements E2B's protocol.
pub struct E2b {
    http: reqwest::Client,
    key: String,
    api: String,
    sandboxes: Option<String>,
    domain: String,
    run: String,
    envd: String,
    live: Mutex<BTreeMap<String, LiveSandbox>>,
    deadline: Duration,
}

/// Fields of a create response that are needed to use the sandbox.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LiveSandbox {
    #[serde(rename = "sandboxID")]
    id: String,
    domain: Option<String>,
    envd_version: String,
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
}

impl E2b {
    /// Reads the configuration from the environment, and checks that a sandbox can be created.
    pub async fn open(place: &TargetResources<'_>) -> Result<Self, TargetFailure> {
        let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let key =
            said("E2B_API_KEY").ok_or_else(|| TargetFailure::new("not_configured", "no E2B_API_KEY"))?;
        let domain = said("E2B_DOMAIN").unwrap_or_else(|| "e2b.app".into());
        let mut e2b = Self {
            http: http::client()?,
            key,
            api: trimmed(said("E2B_API_URL").unwrap_or_else(|| format!("https://api.{domain}"))),
            sandboxes: said("E2B_SANDBOX_URL").map(trimmed),
            domain,
            run: place.run.into(),
            envd: String::new(),
            live: Mutex::default(),
            deadline: place.deadline,
        };
        let made = e2b.create(Image::Plain).await?;
        e2b.envd = e2b.live(&made.handle)?.envd_version;
        e2b.stop(&made.handle).await?;
        Ok(e2b)
    }

    fn live(&self, handle: &str) -> Result<LiveSandbox, TargetFailure> {
        let live = self.live.lock().ok().and_then(|live| live.get(handle).cloned());
        live.ok_or_else(|| TargetFailure::new("not_found", "a sandbox that was not created by this run"))
    }

    /// Builds a request to a port of a sandbox.
    fn inside(
        &self,
        method: Method,
        handle: &str,
        port: u16,
        path: &str,
    ) -> Result<RequestBuilder, TargetFailure> {
        let live = self.live(handle)?;
        let base = self.sandboxes.clone().unwrap_or_else(|| {
            let domain = live.domain.as_deref().filter(|domain| !domain.is_empty()).unwrap_or(&self.domain);
            format!("https://{port}-{handle}.{domain}")
        });
        let mut request = self.http.request(method, format!("{base}{path}")).timeout(self.deadline);
        request = request.header("e2b-sandbox-id", handle).header("e2b-sandbox-port", port);
        if let Some(token) = live.envd_access_token {
            request = request.header("x-access-token", token);
        }
        if let Some(token) = live.traffic_access_token {
            request = request.header("e2b-traffic-access-token", token);
        }
        Ok(request)
    }
}

#[async_trait]
impl Target for E2b {
    fn name(&self) -> &'static str {
        "e2b"
    }

    fn facts(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("api".into(), self.api.clone()), ("envd".into(), self.envd.clone())])
    }

    async fn create(&self, image: Image) -> Result<Made, TargetFailure> {
        let template = match image {
            Image::Plain => "base",
            Image::Data => "code-interpreter-v1",
        };
        let body = json!({ "templateID": template, "timeout": TIMEOUT_S, "metadata": { "bench": self.run } });
        let request = self.http.post(format!("{}/sandboxes", self.api)).header("x-api-key", &self.key);
        let answer = send(json_body(request, &body).timeout(self.deadline)).await?;
        let made: LiveSandbox = serde_json::from_slice(&answer)
            .map_err(|error| TargetFailure::new("protocol", format!("malformed sandbox: {error}")))?;
        let handle = made.id.clone();
        if let Ok(mut live) = self.live.lock() {
            live.insert(handle.clone(), made);
        }
        Ok(Made { handle, start: None })
    }

    async fn stop(&self, handle: &str) -> Result<(), TargetFailure> {
        let request = self.http.delete(format!("{}/sandboxes/{handle}", self.api)).timeout(self.deadline);
        send(request.header("x-api-key", &self.key)).await?;
        if let Ok(mut live) = self.live.lock() {
            live.remove(handle);
        }
        Ok(())
    }

    async fn close(&self) {
        let left: Vec<String> =
            self.live.lock().map(|live| live.keys().cloned().collect()).unwrap_or_default();
        for handle in left {
            let _ = self.stop(&handle).await;
        }
    }

    fn execs(&self) -> Option<&dyn Execs> {
        Some(self)
    }

    fn contexts(&self) -> Option<&dyn Contexts> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn FileTransfers> {
        Some(self)
    }
}

#[async_trait]
impl Execs for E2b {
    async fn exec(&self, handle: &str) -> Result<(), TargetFailure> {
        let start = json!({ "process": { "cmd": NOTHING, "args": [], "envs": {} }, "stdin": false });
        let request = self.inside(Method::POST, handle, ENVD, "/process.Process/Start")?;
        let request = request.header("connect-protocol-version", "1").header("content-type", connect::KIND);
        let answer = send(request.body(connect::envelope(&start))).await?;
        connect::exit_code(&answer).and_then(|code| match code {
            0 => Ok(()),
            code => Err(TargetFailure::new(format!("exit_{code}"), "the command failed")),
        })
    }
}

#[async_trait]
impl Contexts for E2b {
    async fn cell(&self, handle: &str, source: &str) -> Result<(), TargetFailure> {
        let request = self.inside(Method::POST, handle, CODE, "/execute")?;
        let answer = send(json_body(request, &json!({ "code": source }))).await?;
        ended(&answer)
    }
}

#[async_trait]
impl FileTransfers for E2b {
    async fn upload(&self, handle: &str, name: &str, bytes: Bytes) -> Result<(), TargetFailure> {
        let request = self.inside(Method::POST, handle, ENVD, &format!("/files?path={FILES}/{name}"))?;
        send(request.header("content-type", "application/octet-stream").body(bytes)).await.map(drop)
    }

    async fn download(&self, handle: &str, name: &str) -> Result<u64, TargetFailure> {
        let request = self.inside(Method::GET, handle, ENVD, &format!("/files?path={FILES}/{name}"))?;
        Ok(send(request).await?.len() as u64)
    }
}

fn trimmed(url: String) -> String {
    url.trim_end_matches('/').to_owned()
}

fn json_body(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

async fn send(request: RequestBuilder) -> Result<Bytes, TargetFailure> {
    let response: Response = request.send().await.map_err(|error| http::lost(&error))?;
    let status = response.status();
    let body = response.bytes().await.map_err(|error| http::lost(&error))?;
    if status.is_success() {
        return Ok(body);
    }
    let shown: String = String::from_utf8_lossy(&body).chars().take(SHOWN).collect();
    let failure = TargetFailure::new(format!("http_{}", status.as_u16()), shown);
    // Servers that implement this protocol use "too many requests" and "service unavailable" for temporary
    // refusals.
    Err(TargetFailure { refused: matches!(status.as_u16(), 429 | 503), ..failure })
}

/// Checks that the code ran to its end. The response has one JSON object per line, and the last object
/// reports the end.
fn ended(answer: &[u8]) -> Result<(), TargetFailure> {
    let lines = answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut is_ended = false;
    for line in lines {
        let event: Value = serde_json::from_slice(line)
            .map_err(|error| TargetFailure::new("protocol", format!("malformed line: {error}")))?;
        match event.get("type").and_then(Value::as_str) {
            Some("error") => return Err(TargetFailure::new("exception", event.to_string())),
            Some("end_of_execution") => is_ended = true,
            Some(_) | None => {}
        }
    }
    if is_ended { Ok(()) } else { Err(TargetFailure::new("cut", "the response has no end")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_ended_only_if_it_was_said() {
        let end = b"{\"type\":\"stdout\",\"text\":\"1\"}\n{\"type\":\"end_of_execution\"}\n";
        assert_eq!(ended(end), Ok(()));
        assert_eq!(ended(b"{\"type\":\"stdout\",\"text\":\"1\"}\n").unwrap_err().code, "cut");
        assert_eq!(ended(b"{\"type\":\"error\",\"name\":\"E\"}\n").unwrap_err().code, "exception");
    }

    #[test]
    fn a_sandbox_is_read_with_and_without_its_tokens() {
        let full = r#"{"sandboxID":"i1","templateID":"base","clientID":"c","envdVersion":"0.6.13","envdAccessToken":"t","domain":null}"#;
        let live: LiveSandbox = serde_json::from_str(full).unwrap();
        assert_eq!((live.id.as_str(), live.envd_access_token.as_deref()), ("i1", Some("t")));
        assert!(live.domain.is_none() && live.traffic_access_token.is_none());
    }
}
