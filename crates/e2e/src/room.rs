//! A sandbox of the template `interpreter`, and functions that run code in it.

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

/// Deadline for code, in seconds. The first code in a sandbox waits for all imports of the template.
const RUN_WITHIN: u64 = 120;

/// A sandbox for running code.
#[derive(Clone)]
pub struct Room {
    /// Client that sends requests to the server.
    pub client: Client,
    /// The sandbox.
    pub id: SandboxId,
    /// Tier of the sandbox.
    pub tier: Tier,
}

/// The output, the results and the end of a run of code.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Standard output. Invalid UTF-8 is replaced (requirement A3.01).
    pub stdout: String,
    /// Standard error. Invalid UTF-8 is replaced, as in `stdout`.
    pub stderr: String,
    /// Results that the code displayed.
    pub results: Vec<ResultLine>,
    /// End of the exec that ran the code.
    pub end: ExecEnd,
}

/// Starts a server with the template `interpreter`.
pub fn service() -> Service {
    let service = Service::start();
    layer::lend(service.data(), "interpreter");
    service
}

/// Runs a test once per tier, each time with a new server and sandbox.
pub fn in_a_room(test: impl AsyncFn(&mut Service, &Room)) {
    in_a_room_with(Limits { memory_bytes: 1 << 30, ..Limits::default() }, &[], test);
}

/// Does the same as [`in_a_room`], with the given limits and policy.
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

/// Returns the spec of an exec that runs Python code without a context.
pub fn python(source: &str) -> ExecSpec {
    coded(Code { source: source.into(), ..Code::default() })
}

/// Returns the spec of an exec that runs code in another language without a context.
pub fn written_in(language: Language, source: &str) -> ExecSpec {
    coded(Code { source: source.into(), language: Some(language), ..Code::default() })
}

/// Returns the spec of an exec that runs this code, with the default deadline.
pub fn coded(code: Code) -> ExecSpec {
    let deadline_ms = u64::try_from(promised(RUN_WITHIN).as_millis()).ok();
    ExecSpec { code: Some(code), deadline_ms, ..ExecSpec::default() }
}

impl Room {
    /// Creates a sandbox in this tier with these limits and this policy.
    pub async fn with(service: &Service, tier: Tier, limits: Limits, policy: &[&str]) -> Self {
        let client = service.client();
        let policy = (!policy.is_empty()).then(|| Policy::of_words(policy).unwrap());
        let template = "interpreter".into();
        let ask = CreateSandbox { template, tier, limits: limits.into(), policy, ..CreateSandbox::default() };
        let id = client.create(&ask).await.unwrap().id;
        Self { client, id, tier }
    }

    /// Returns true if the sandbox uses the host's kernel. In that case, memory is limited per exec, and an
    /// exec that exceeds its limit does not end the sandbox.
    pub fn is_container(&self) -> bool {
        self.tier == Tier::Container
    }

    /// Runs Python code to completion.
    pub async fn run(&self, source: &str) -> Ran {
        self.exec(&python(source)).await
    }

    /// Runs an exec to completion.
    pub async fn exec(&self, spec: &ExecSpec) -> Ran {
        let reading = async { self.client.exec(&self.id, spec).await?.collect().await };
        let within = promised(2 * RUN_WITHIN);
        let done = tokio::time::timeout(within, reading).await;
        let done = done.unwrap_or_else(|_| panic!("no end within {within:?}: {spec:?}"));
        done.unwrap_or_else(|error| panic!("{error:?}: {spec:?}")).into()
    }

    /// Returns the error of an exec that must be refused.
    pub async fn refused(&self, spec: &ExecSpec) -> api::Error {
        match self.client.exec(&self.id, spec).await {
            Ok(exec) => panic!("{:?}", exec.collect().await),
            Err(error) => error.to_api(),
        }
    }

    /// Creates a context.
    pub async fn context(&self, language: Language) -> ContextId {
        let spec = ContextSpec { language, ..ContextSpec::default() };
        self.client.create_context(&self.id, &spec).await.unwrap().id
    }

    /// Runs a cell in a context to completion.
    pub async fn cell(&self, context: &ContextId, source: &str) -> Ran {
        self.exec(&cell(context, source)).await
    }

    /// Runs a shell script, which must succeed, and returns its standard output.
    pub async fn sh(&self, script: &str) -> String {
        let ran = self.exec(&crate::lab::script(script)).await;
        assert_eq!(ran.end.outcome, Outcome::Exited { code: 0 }, "{script}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// Waits until no process in the sandbox has this word in its command line.
    pub async fn until_gone(&self, word: &str, within: Duration) {
        // With its first letter in brackets, the pattern does not match the command line of `grep`.
        let (first, rest) = word.split_at(1);
        let look = format!("grep -lz '[{first}]{rest}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l");
        let what = format!("every {word} to be gone");
        crate::service::until(within, &what, async || self.sh(&look).await == "0").await;
    }
}

/// Returns the spec of an exec that runs a cell in a context, with the default deadline.
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
    /// Returns the exit code.
    pub fn code(&self) -> i32 {
        match self.end.outcome {
            Outcome::Exited { code } => code,
            _ => panic!("{self:?}"),
        }
    }

    /// Asserts that the code succeeded, and returns this run unchanged.
    pub fn well(self) -> Self {
        assert_eq!(self.code(), 0, "{self:?}");
        self
    }

    /// Returns the exception that the code did not catch. Panics if there is none.
    pub fn error(&self) -> &Exception {
        let found = self.results.iter().find_map(|line| match &line.result {
            RunResult::Error(exception) => Some(exception),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no error: {self:?}"))
    }

    /// Returns all displayed values and the value of the last expression, in order.
    pub fn shown(&self) -> Vec<&Bundle> {
        let bundles = self.results.iter().filter_map(|line| match &line.result {
            RunResult::Value(bundle) | RunResult::Display(bundle) => Some(bundle),
            _ => None,
        });
        bundles.collect()
    }

    /// Returns the plain text of the last expression's value.
    pub fn value(&self) -> &str {
        let found = self.results.iter().find_map(|line| match &line.result {
            RunResult::Value(bundle) => bundle.data.get("text/plain").and_then(|text| text.as_str()),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no value: {self:?}"))
    }

    /// Returns why the context was restarted before this run, or `None` if it was not restarted.
    pub fn restarted(&self) -> Option<Loss> {
        self.results.iter().find_map(|line| match line.result {
            RunResult::Restarted { because } => Some(because),
            _ => None,
        })
    }
}
