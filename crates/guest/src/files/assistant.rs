//! The helper processes that serve file requests.

use std::cell::Cell;
use std::rc::Rc;

use api::exec::ExecSpec;
use api::{Error, ErrorCode, Layer, Ran, Retry};

use crate::groups::HeldGroup;
use crate::launch::Launched;
use crate::processes::Processes;

/// Maximum number of concurrent requests with a helper process. Each helper process takes a few pages of
/// memory.
const ASSISTANTS_MAX: usize = 64;

/// All helper processes of the sandbox.
pub struct Assistants {
    processes: Rc<Processes>,
    count: Rc<Cell<usize>>,
}

/// A helper process that runs this program for one request, isolated like user code.
pub struct Assistant {
    group: HeldGroup,
    count: Rc<Cell<usize>>,
}

impl Assistants {
    /// Creates an empty set of helper processes.
    pub fn new(processes: Rc<Processes>) -> Self {
        Self { processes, count: Rc::default() }
    }

    /// Starts a helper process for a request. This process is not an exec: it has no ID and no outcome.
    pub async fn start(&self, spec: &ExecSpec) -> Result<(Launched, Assistant), Error> {
        self.processes.check_user(spec)?;
        self.processes.memory().settled().await;
        if self.count.get() >= ASSISTANTS_MAX {
            return Err(Error {
                code: ErrorCode::Capacity,
                message: format!("{ASSISTANTS_MAX} file requests are in progress, the maximum"),
                layer: Layer::Sandbox,
                ran: Ran::No,
                retry: Retry::Safe,
                fix: "Retry when some of these requests have finished.".into(),
            });
        }
        let group = self.processes.group();
        let who = self.processes.identity(spec, group.number());
        let launched = self.processes.launch(spec, who, &[])?;
        self.count.set(self.count.get() + 1);
        Ok((launched, Assistant { group, count: Rc::clone(&self.count) }))
    }
}

impl Assistant {
    /// Returns the group of the helper process.
    pub fn group(&self) -> u32 {
        self.group.number()
    }
}

impl Drop for Assistant {
    fn drop(&mut self) {
        self.count.set(self.count.get().saturating_sub(1));
    }
}
