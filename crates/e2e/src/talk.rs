//! Sessions on a server, which tests use in the same way as an agent.

use api::SessionId;
use api::sandbox::Tier;
use api::session::{CreateSession, ToolSet};
use client::{Called, Calling, Client};
use serde_json::Value;

use crate::lab::promised;
use crate::layer;
use crate::service::{Service, served, tiers, until};

/// A session and its client.
#[derive(Clone)]
pub struct Talk {
    /// Client that sends requests to the server.
    pub client: Client,
    /// The session.
    pub id: SessionId,
}

/// Starts a server with the templates of all tool sets. Each of these templates is a copy of `interpreter`,
/// which contains everything that the tool sets need. Their real templates would take minutes to build.
pub fn service() -> Service {
    let service = Service::start();
    lend(&service);
    service
}

/// Adds the templates of all tool sets to a server.
pub fn lend(service: &Service) {
    layer::lend(service.data(), "interpreter");
    let templates = service.data().join("templates");
    for set in [ToolSet::Analysis, ToolSet::Python] {
        let name = set.name();
        let text = std::fs::read_to_string(templates.join("interpreter.json")).unwrap();
        let text = text.replace("\"interpreter\"", &format!("\"{name}\""));
        std::fs::write(templates.join(format!("{name}.json")), text).unwrap();
    }
}

/// Runs a test once per tier, each time with a new server and a session with this tool set.
pub fn in_a_session(set: ToolSet, test: impl AsyncFn(&mut Service, &Talk)) {
    served(async || {
        for tier in tiers() {
            let mut service = service();
            let talk = Talk::with(&service, CreateSession { tier, ..CreateSession::of(set) }).await;
            eprintln!("on {tier:?}:");
            test(&mut service, &talk).await;
        }
    });
}

/// Does the same as [`in_a_session`], but only in the container tier.
pub fn in_one_session(set: ToolSet, test: impl AsyncFn(&mut Service, &Talk)) {
    served(async || {
        let mut service = service();
        let talk =
            Talk::with(&service, CreateSession { tier: Tier::Container, ..CreateSession::of(set) }).await;
        test(&mut service, &talk).await;
    });
}

impl Talk {
    /// Creates a session.
    pub async fn with(service: &Service, request: CreateSession) -> Self {
        let client = service.client();
        let id = client.create_session(&request).await.unwrap().id;
        Self { client, id }
    }

    /// Calls a tool, which must succeed.
    pub async fn called(&self, tool: &str, arguments: Value) -> Called {
        let call = self.client.call_tool(&self.id, tool, &arguments, Calling::default()).await;
        call.unwrap_or_else(|error| panic!("{tool} {arguments}: {error:?}"))
    }

    /// Calls a tool, which must succeed, and returns its result.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.called(tool, arguments).await.result
    }

    /// Returns the error of a call that must be refused.
    pub async fn refused(&self, tool: &str, arguments: Value) -> api::Error {
        match self.client.call_tool(&self.id, tool, &arguments, Calling::default()).await {
            Ok(called) => panic!("{called:?}"),
            Err(error) => error.to_api(),
        }
    }

    /// Waits until the current run of the session has printed something.
    pub async fn until_printing(&self) {
        until(promised(30), "the output of a run", async || {
            let Some(sandbox) = self.client.session(&self.id).await.unwrap().sandbox else { return false };
            let execs = self.client.execs(&sandbox).await.unwrap_or_default();
            execs.iter().any(|exec| exec.outcome.is_none() && exec.stdout_bytes > 0)
        })
        .await;
    }

    /// Runs a shell script with the tool set `analysis` and returns its output. The script must succeed.
    pub async fn sh(&self, script: &str) -> String {
        let answer = self.call("sandbox_exec", serde_json::json!({"command": ["sh", "-c", script]})).await;
        assert_eq!(answer["exit_code"], 0, "{script}: {answer}");
        answer["stdout"].as_str().unwrap().trim_end().to_owned()
    }
}
