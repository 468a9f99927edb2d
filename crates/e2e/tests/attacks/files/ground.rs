//! Setup shared by all attacks on files: a server, and a sandbox in each tier.

use std::time::{Duration, Instant};

use api::files::FilePath;
use api::sandbox::{CreateSandbox, Tier};
use api::{ErrorCode, SandboxId};
use client::{Client, Error, Files};
use e2e::service::{Service, served, small};
use e2e::{Body, attack};

/// A sandbox in one tier, on a separate server.
pub(crate) struct Ground {
    pub(crate) service: Service,
    pub(crate) client: Client,
    pub(crate) sandbox: SandboxId,
    pub(crate) files: Files,
    pub(crate) tier: &'static str,
    /// The request that created the sandbox.
    pub(crate) request: CreateSandbox,
}

/// Runs an attack once per tier whose runtime is under test, each time in a new sandbox.
pub(crate) fn each(attack: impl AsyncFn(&Ground)) {
    on_each_tier(&small(), &attack);
}

/// Does the same as [`each`], with sandboxes that this request creates.
pub(crate) fn each_with(request: &CreateSandbox, attack: impl AsyncFn(&Ground)) {
    on_each_tier(request, &attack);
}

fn on_each_tier(request: &CreateSandbox, attack: &dyn Body<Ground>) {
    served(async || {
        for (tier, runtime) in [(Tier::Container, "runc"), (Tier::UserKernel, "runsc")] {
            if !e2e::lab::wanted(runtime) {
                continue;
            }
            attack::begin();
            let request = CreateSandbox { tier, ..request.clone() };
            let ground = Ground::new(Service::start(), runtime, request).await;
            attack.run(&ground).await;
            ground.recovers().await;
            ground.end().await;
        }
    });
}

impl Ground {
    async fn new(service: Service, tier: &'static str, request: CreateSandbox) -> Self {
        let client = service.client();
        let sandbox = client.create(&request).await.unwrap().id;
        let files = client.files(&sandbox);
        Self { service, client, sandbox, files, tier, request }
    }

    /// Starts another server, whose defence against an attack is off, with a sandbox like this one.
    pub(crate) async fn without_defence(&self, id: &str) -> Self {
        attack::count_control();
        let switch = format!("{}={id}", api::defence::VARIABLE);
        Self::new(Service::with(&["env", &switch], &[]), self.tier, self.request.clone()).await
    }

    /// Stops the sandbox and asserts that nothing is left of it.
    pub(crate) async fn end(&self) {
        self.client.stop(&self.sandbox).await.unwrap();
        self.service.assert_nothing_left().await;
    }

    /// Runs a shell script in the sandbox to completion and returns its output.
    pub(crate) async fn run(&self, script: &str) -> String {
        let exec = self.client.exec(&self.sandbox, &e2e::lab::script(script)).await.unwrap();
        let done = exec.collect().await.unwrap();
        assert_eq!(done.end.outcome, api::exec::Outcome::Exited { code: 0 }, "{script}: {done:?}");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Starts a shell script in the sandbox without waiting for its end.
    pub(crate) async fn begin(&self, script: &str) {
        self.client.start(&self.sandbox, &e2e::lab::script(script)).await.unwrap();
    }

    /// Asserts that file requests and execs still work.
    async fn recovers(&self) {
        let place = path("/workspace/after");
        self.files.write(&place, "alive".into(), None).await.unwrap();
        assert_eq!(self.run("cat /workspace/after").await, "alive");
        assert_eq!(self.files.read(&place, 100).await.unwrap(), b"alive");
    }

    /// Returns the resident memory of the server in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.service.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Prints that Bellglass withstood an attack.
    pub(crate) fn held(&self, id: &str, figures: &str) {
        attack::held(id, self.tier, figures);
    }

    /// Waits until a file exists in the sandbox's working directory.
    pub(crate) async fn until_there(&self, name: &str) {
        self.run(&format!("until [ -e {name} ]; do sleep 0.02; done")).await;
    }
}

pub(crate) fn path(text: impl AsRef<[u8]>) -> FilePath {
    FilePath::new(text.as_ref()).unwrap()
}

/// Returns the error code of a request that must be refused.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    match result {
        Err(Error::Refused(error)) => {
            assert!(!error.fix.is_empty(), "{error:?}");
            error.code
        }
        other => panic!("{other:?}"),
    }
}

/// Runs an operation and returns its result and its duration.
pub(crate) async fn timed<T>(act: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    (act.await, begun.elapsed())
}
