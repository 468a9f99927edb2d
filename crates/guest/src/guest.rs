//! The state of process 1: execs, contexts, and everything that they run on.

use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;
use std::time::Duration;

use api::exec::ExecSpec;
use api::{Error, ExecId};

use crate::code;
use crate::contexts::Contexts;
use crate::exec::GuestExec;
use crate::files::Assistants;
use crate::launch::Purpose;
use crate::lifetime::Lifetime;
use crate::parent::Parent;
use crate::processes::{House, Processes};
use crate::table::ExecTable;

/// The state of process 1, which all its connections share.
pub struct Guest {
    /// Processes that the guest has started.
    pub processes: Rc<Processes>,
    /// All execs.
    pub execs: Rc<ExecTable>,
    /// Parent interpreter, from which Python runs are forked.
    pub parent: Rc<Parent>,
    /// Long-lived interpreters.
    pub contexts: Contexts,
    /// Helper processes of file requests.
    pub assistants: Assistants,
    lifetime: Lifetime,
}

impl Guest {
    /// Creates the state of a sandbox with this purpose and time to live, in which nothing runs.
    pub fn new(purpose: Purpose, house: House, ttl: Duration) -> Self {
        let processes = Rc::new(Processes::new(purpose, house));
        let execs = Rc::new(ExecTable::new(Rc::clone(&processes)));
        let parent = Rc::new(Parent::new(Rc::clone(&processes)));
        let contexts = Contexts::new(Rc::clone(&parent));
        let assistants = Assistants::new(Rc::clone(&processes));
        Self { processes, execs, parent, contexts, assistants, lifetime: Lifetime::new(ttl) }
    }

    /// Starts an exec, or finds the exec that an identical earlier request started. Both requests wait for
    /// the same result, so a repeated request gets the same answer.
    pub async fn start(&self, id: ExecId, spec: ExecSpec, body: &[u8]) -> Result<Rc<GuestExec>, Error> {
        let fingerprint = fingerprint(body);
        spec.check()?;
        self.processes.check_user(&spec)?;
        self.processes.memory().settled().await;
        let exec = match self.execs.started_before(&id, fingerprint)? {
            Some(exec) => exec,
            None if spec.code.is_some() => {
                code::begin(&self.execs, &self.contexts, &self.parent, id, spec, fingerprint)?
            }
            None => self.execs.begin(id, spec, fingerprint)?,
        };
        exec.begun().await?;
        Ok(exec)
    }

    /// Stops the deadlines of all execs, because the sandbox is about to be paused. Also sets the sandbox's
    /// time to live.
    pub fn hold(&self, ttl: Duration) {
        self.lifetime.set(ttl);
        self.execs.hold();
    }

    /// Resumes the deadlines of all execs if they were stopped. Also sets the sandbox's time to live.
    pub fn release(&self, ttl: Duration) {
        self.lifetime.set(ttl);
        self.execs.release();
    }

    /// Waits for the end of the time to live.
    pub async fn expired(&self) {
        self.lifetime.expired().await;
    }
}

fn fingerprint(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use api::{ErrorCode, Ran};
    use rustix::process::{WaitOptions, waitpid};
    use tokio::task::LocalSet;

    use super::*;

    /// Runs a test on one thread, like the guest, and reaps the children afterwards.
    fn with_guest(test: impl AsyncFn(&Guest)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guest = Guest::new(Purpose::Run, House::Ours, Duration::MAX);
        LocalSet::new().block_on(&runtime, test(&guest));
        for pid in guest.processes.owned() {
            waitpid(Some(pid), WaitOptions::empty()).unwrap();
        }
    }

    async fn start(guest: &Guest, program: &str) -> Result<Rc<GuestExec>, Error> {
        let spec = ExecSpec { argv: vec![program.into()], cwd: Some("/".into()), ..ExecSpec::default() };
        guest.start("e1".parse().unwrap(), spec, program.as_bytes()).await
    }

    fn groups_taken(guest: &Guest) -> u32 {
        guest.processes.groups_taken()
    }

    #[test]
    fn a_start_that_is_asked_for_twice_is_answered_the_same_twice() {
        with_guest(async |guest| {
            let (first, second) = tokio::join!(start(guest, "/nowhere"), start(guest, "/nowhere"));
            let first = first.err().unwrap();
            assert_eq!((first.code, first.ran), (ErrorCode::SpawnFailed, Ran::No));
            assert_eq!(Some(first), second.err());
            assert!(guest.execs.list().is_empty(), "what never was is not listed");
            assert_eq!(groups_taken(guest), 1, "it was tried once");
            // Without privileges, the start fails. Both requests must then get the same error.
            match tokio::join!(start(guest, "/bin/true"), start(guest, "/bin/true")) {
                (Ok(first), Ok(second)) => assert!(Rc::ptr_eq(&first, &second)),
                (first, second) => assert_eq!(first.err().unwrap(), second.err().unwrap()),
            }
            assert_eq!(groups_taken(guest), 2);
        });
    }

    #[test]
    fn a_start_comes_to_its_verdict_when_the_request_for_it_is_gone() {
        with_guest(async |guest| {
            tokio::select! {
                biased;
                _ = start(guest, "/nowhere") => panic!("nothing was awaited"),
                () = std::future::ready(()) => {}
            }
            let reader = guest.execs.exec(&"e1".parse().unwrap()).unwrap();
            let conflict = start(guest, "/elsewhere").await.err().unwrap();
            assert_eq!(conflict.code, ErrorCode::Conflict);
            let error = start(guest, "/nowhere").await.err().unwrap();
            assert_eq!(error.code, ErrorCode::SpawnFailed);
            assert_eq!(reader.begun().await, Err(error), "a reader that attached meanwhile hears it too");
            assert_eq!(groups_taken(guest), 1, "it was tried once");
            start(guest, "/nowhere").await.err().unwrap();
            assert_eq!(groups_taken(guest), 2, "after the verdict it can be tried again");
        });
    }
}
