//! Setup shared by all attacks on files: a server, and a sandbox in each tier.

use std::time::{Duration, Instant};

use api::files::FilePath;
use api::sandbox::{CreateSandbox, Tier};
use api::{ErrorCode, SandboxId};
use client::{Client, Error, Files};
use e2e::service::{Service, served, small};

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
    each_with(&small(), attack);
}

/// Does the same as [`each`], with sandboxes that this request creates.
pub(crate) fn each_with(request: &CreateSandbox, attack: impl AsyncFn(&Ground)) {
    served(async || {
        for (tier, runtime) in [(Tier::Container, "runc"), (Tier::UserKernel, "runsc")] {
            if !e2e::lab::wanted(runtime) {
                continue;
            }
            let service = Service::start();
            let client = service.client();
            let request = CreateSandbox { tier, ..request.clone() };
            let sandbox = client.create(&request).await.unwrap().id;
            let files = client.files(&sandbox);
            let ground = Ground { service, client, sandbox, files, tier: runtime, request };
            attack(&ground).await;
            ground.recovers().await;
            ground.client.stop(&ground.sandbox).await.unwrap();
            ground.service.assert_nothing_left().await;
        }
    });
}

impl Ground {
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
        println!("attack {id} {} held (control reached): {figures}", self.tier);
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
