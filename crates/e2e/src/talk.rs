//! Sessions of a server, as an agent has them.

use api::SessionId;
use api::sandbox::Tier;
use api::session::{CreateSession, ToolSet};
use client::{Called, Calling, Client};
use serde_json::Value;

use crate::layer;
use crate::service::{Service, served, tiers};

/// A session, and who calls.
#[derive(Clone)]
pub struct Talk {
    /// Who calls.
    pub client: Client,
    /// The session.
    pub id: SessionId,
}

/// A server with the templates of all tool sets. One stands for all: it has what each of them needs, and takes minutes to build.
pub fn service() -> Service {
    let service = Service::start();
    lend(&service);
    service
}

/// Gives a server the templates of all tool sets.
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

/// Runs a test on a server, with a session of this tool set in every tier.
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

/// Likewise, in a container only.
pub fn in_one_session(set: ToolSet, test: impl AsyncFn(&mut Service, &Talk)) {
    served(async || {
        let mut service = service();
        let talk =
            Talk::with(&service, CreateSession { tier: Tier::Container, ..CreateSession::of(set) }).await;
        test(&mut service, &talk).await;
    });
}

impl Talk {
    /// A session as it is asked for.
    pub async fn with(service: &Service, request: CreateSession) -> Self {
        let client = service.client();
        let id = client.create_session(&request).await.unwrap().id;
        Self { client, id }
    }

    /// Calls a tool.
    pub async fn called(&self, tool: &str, arguments: Value) -> Called {
        let call = self.client.call_tool(&self.id, tool, &arguments, Calling::default()).await;
        call.unwrap_or_else(|error| panic!("{tool} {arguments}: {error:?}"))
    }

    /// What a tool answers.
    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.called(tool, arguments).await.result
    }

    /// Why a call is refused.
    pub async fn refused(&self, tool: &str, arguments: Value) -> api::Error {
        match self.client.call_tool(&self.id, tool, &arguments, Calling::default()).await {
            Ok(called) => panic!("{called:?}"),
            Err(error) => error.to_api(),
        }
    }

    /// What a command of the tool set `analysis` writes; it must end well.
    pub async fn sh(&self, script: &str) -> String {
        let answer = self.call("sandbox_exec", serde_json::json!({"command": ["sh", "-c", script]})).await;
        assert_eq!(answer["exit_code"], 0, "{script}: {answer}");
        answer["stdout"].as_str().unwrap().trim_end().to_owned()
    }
}
