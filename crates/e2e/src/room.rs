//! A sandbox of the template `interpreter`, and code that runs in it.

use std::time::Duration;

use api::code::{Bundle, Code, ContextSpec, Exception, Language, Loss, ResultLine, RunResult};
use api::exec::{ExecEnd, ExecSpec, Outcome};
use api::limits::Limits;
use api::policy::Policy;
use api::sandbox::{CreateSandbox, Tier};
use api::{ContextId, SandboxId};
use client::{Client, Collected};

use crate::lab::promised;
use crate::layer;
use crate::service::{Service, served, tiers};

/// The first code of a sandbox waits for all imports; no code of a test takes longer than this by itself.
const RUN_WITHIN: u64 = 120;

/// A sandbox that runs code.
#[derive(Clone)]
pub struct Room {
    /// Who asks.
    pub client: Client,
    /// The sandbox.
    pub id: SandboxId,
    /// Its tier.
    pub tier: Tier,
}

/// What a run of code wrote and showed, and how it ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Standard output; what is no UTF-8 is replaced (requirement A3.01).
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// What it showed.
    pub results: Vec<ResultLine>,
    /// How it ended.
    pub end: ExecEnd,
}

/// A server with the template `interpreter`.
pub fn service() -> Service {
    let service = Service::start();
    layer::lend(service.data(), "interpreter");
    service
}

/// Runs a test on a server of its own, with a sandbox of every tier.
pub fn in_a_room(test: impl AsyncFn(&mut Service, &Room)) {
    in_a_room_with(Limits { memory_bytes: 1 << 30, ..Limits::default() }, &[], test);
}

/// The same with other limits and a policy.
pub fn in_a_room_with(limits: Limits, policy: &[&str], test: impl AsyncFn(&mut Service, &Room)) {
    served(async || {
        for tier in tiers() {
            let mut service = service();
            let room = Room::with(&service, tier, limits, policy).await;
            eprintln!("on {tier:?}:");
            test(&mut service, &room).await;
        }
    });
}

/// Python code without a context.
pub fn python(source: &str) -> ExecSpec {
    coded(Code { source: source.into(), ..Code::default() })
}

/// Code of another language, without a context.
pub fn written_in(language: Language, source: &str) -> ExecSpec {
    coded(Code { source: source.into(), language: Some(language), ..Code::default() })
}

/// A run of this code, with the usual deadline.
pub fn coded(code: Code) -> ExecSpec {
    let deadline_ms = u64::try_from(promised(RUN_WITHIN).as_millis()).ok();
    ExecSpec { code: Some(code), deadline_ms, ..ExecSpec::default() }
}

impl Room {
    /// A sandbox of this tier with these limits and this policy.
    pub async fn with(service: &Service, tier: Tier, limits: Limits, policy: &[&str]) -> Self {
        let client = service.client();
        let policy = (!policy.is_empty()).then(|| Policy::of_words(policy).unwrap());
        let template = "interpreter".into();
        let ask = CreateSandbox { template, tier, limits: limits.into(), policy, ..CreateSandbox::default() };
        let id = client.create(&ask).await.unwrap().id;
        Self { client, id, tier }
    }

    /// Whether the host's kernel serves it: then memory is counted by the exec, and its own end does not end the sandbox.
    pub fn is_container(&self) -> bool {
        self.tier == Tier::Container
    }

    /// Runs Python code to its end.
    pub async fn run(&self, source: &str) -> Ran {
        self.exec(&python(source)).await
    }

    /// Runs something to its end.
    pub async fn exec(&self, spec: &ExecSpec) -> Ran {
        let reading = async { self.client.exec(&self.id, spec).await?.collect().await };
        let within = promised(2 * RUN_WITHIN);
        let done = tokio::time::timeout(within, reading).await;
        let done = done.unwrap_or_else(|_| panic!("no end within {within:?}: {spec:?}"));
        done.unwrap_or_else(|error| panic!("{error:?}: {spec:?}")).into()
    }

    /// Why something is refused.
    pub async fn refused(&self, spec: &ExecSpec) -> api::Error {
        match self.client.exec(&self.id, spec).await {
            Ok(exec) => panic!("{:?}", exec.collect().await),
            Err(error) => error.to_api(),
        }
    }

    /// A new context.
    pub async fn context(&self, language: Language) -> ContextId {
        let spec = ContextSpec { language, ..ContextSpec::default() };
        self.client.create_context(&self.id, &spec).await.unwrap().id
    }

    /// Runs a cell to its end.
    pub async fn cell(&self, context: &ContextId, source: &str) -> Ran {
        self.exec(&cell(context, source)).await
    }

    /// What a shell of the sandbox says; it must end well.
    pub async fn sh(&self, script: &str) -> String {
        let ran = self.exec(&crate::lab::script(script)).await;
        assert_eq!(ran.end.outcome, Outcome::Exited { code: 0 }, "{script}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// Waits until no process of the sandbox has this word in its command line.
    pub async fn until_gone(&self, word: &str, within: Duration) {
        // The word in brackets is not found in the command line of whoever looks.
        let (first, rest) = word.split_at(1);
        let look = format!("grep -lz '[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l");
        let what = format!("every {word} to be gone");
        crate::service::until(within, &what, async || self.sh(&look).await == "0").await;
    }
}

/// A cell of a context, with the usual deadline.
pub fn cell(context: &ContextId, source: &str) -> ExecSpec {
    coded(Code { source: source.into(), context: Some(context.clone()), ..Code::default() })
}

impl From<Collected> for Ran {
    fn from(Collected { stdout, stderr, results, end }: Collected) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { stdout: text(stdout), stderr: text(stderr), results, end }
    }
}

impl Ran {
    /// Its exit code.
    pub fn code(&self) -> i32 {
        match self.end.outcome {
            Outcome::Exited { code } => code,
            _ => panic!("{self:?}"),
        }
    }

    /// It ended well.
    pub fn well(self) -> Self {
        assert_eq!(self.code(), 0, "{self:?}");
        self
    }

    /// The exception that nobody caught. There is one.
    pub fn error(&self) -> &Exception {
        let found = self.results.iter().find_map(|line| match &line.result {
            RunResult::Error(exception) => Some(exception),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    /// What it displayed, and the value of its last expression, in order.
    pub fn shown(&self) -> Vec<&Bundle> {
        let bundles = self.results.iter().filter_map(|line| match &line.result {
            RunResult::Value(bundle) | RunResult::Display(bundle) => Some(bundle),
            _ => None,
        });
        bundles.collect()
    }

    /// The text of its last expression.
    pub fn value(&self) -> &str {
        let found = self.results.iter().find_map(|line| match &line.result {
            RunResult::Value(bundle) => bundle.data.get("text/plain").and_then(|text| text.as_str()),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no value: {self:?}"))
    }

    /// Why its context began anew before it, if it did.
    pub fn restarted(&self) -> Option<Loss> {
        self.results.iter().find_map(|line| match line.result {
            RunResult::Restarted { because } => Some(because),
            _ => None,
        })
    }
}
