//! The interpreter of a sandbox, and contexts: interpreters that keep their variables between cells. Like
//! execs, contexts live in the guest's table. A cell is an exec ([`crate::exec`]).

use std::collections::BTreeMap;
use std::time::Duration;

use api::ContextId;
use api::code::{ContextInfo, ContextSpec, InterpreterInfo, InterpreterSpec, Variable};
use bytes::Bytes;
use host::error::Error;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exec::{ANSWER_WITHIN, CODE_WITHIN};
use crate::link::GuestRequest;
use crate::sandbox::Sandbox;

/// Timeout for requests to a context. A guest allows ten seconds to read a context's variables and five
/// seconds to stop a cell; the response takes a little longer.
const CONTEXT_WITHIN: Duration = Duration::from_secs(20);
/// Environment variables that limit the thread pools of native libraries. Without them, these libraries start
/// one thread for each processor of the machine.
const POOLS: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
];

/// Body argument for requests without a body.
const NO_BODY: Option<&()> = None;

impl Sandbox {
    /// Sets the configuration for the sandbox's interpreter. Does not start the interpreter, and can be
    /// called repeatedly.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond.
    pub async fn set_interpreter(
        &self,
        imports: &[String],
        env: &BTreeMap<String, String>,
        cpu_millis: u64,
    ) -> Result<(), Error> {
        let mut spec = InterpreterSpec { imports: imports.to_vec(), env: env.clone() };
        limit_thread_pools(&mut spec.env, cpu_millis);
        self.request(Method::PUT, "/interpreter".into(), Some(&spec), ANSWER_WITHIN).await
    }

    /// Returns the state of the sandbox's interpreter. Starts the interpreter if it is not running.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond.
    pub async fn interpreter(&self) -> Result<InterpreterInfo, Error> {
        self.request(Method::GET, "/interpreter".into(), NO_BODY, CODE_WITHIN).await
    }

    /// Creates a context with this ID. Repeating the same request has no effect.
    ///
    /// # Errors
    /// Returns an error if the ID belongs to a different context or the process could not be started.
    pub async fn create_context(&self, id: &ContextId, spec: &ContextSpec) -> Result<ContextInfo, Error> {
        self.request(Method::PUT, format!("/contexts/{id}"), Some(spec), CODE_WITHIN).await
    }

    /// Returns all contexts of the sandbox.
    ///
    /// # Errors
    /// Returns an error if the sandbox has ended or does not respond.
    pub async fn contexts(&self) -> Result<Vec<ContextInfo>, Error> {
        self.request(Method::GET, "/contexts".into(), NO_BODY, ANSWER_WITHIN).await
    }

    /// Removes a context, and stops the cell that is running in it.
    ///
    /// # Errors
    /// Returns an error if the context is unknown or if the sandbox has ended.
    pub async fn remove_context(&self, id: &ContextId) -> Result<(), Error> {
        self.request(Method::DELETE, format!("/contexts/{id}"), NO_BODY, CONTEXT_WITHIN).await
    }

    /// Restarts a context, which loses its variables.
    ///
    /// # Errors
    /// Returns an error if the context is unknown or if its process could not be started.
    pub async fn restart_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        self.request(Method::POST, format!("/contexts/{id}/restart"), NO_BODY, CODE_WITHIN).await
    }

    /// Interrupts the cell that is running in a context. The context keeps its variables if the cell handles
    /// the interrupt.
    ///
    /// # Errors
    /// Returns an error if the context is unknown or if the sandbox has ended.
    pub async fn interrupt_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        self.request(Method::POST, format!("/contexts/{id}/interrupt"), NO_BODY, CONTEXT_WITHIN).await
    }

    /// Returns the variables of a context.
    ///
    /// # Errors
    /// Returns an error if the context is unknown or is running a cell.
    pub async fn variables(&self, id: &ContextId) -> Result<Vec<Variable>, Error> {
        self.request(Method::GET, format!("/contexts/{id}/variables"), NO_BODY, CONTEXT_WITHIN).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        body: Option<&impl Serialize>,
        within: Duration,
    ) -> Result<T, Error> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| Error::Protocol(error.to_string()))?;
        let body = body.map(Bytes::from).unwrap_or_default();
        self.link().call(&GuestRequest { method, path, body }, within).await
    }
}

/// Limits the thread pools of native libraries to the sandbox's number of processors, unless the variables
/// already set a size.
pub fn limit_thread_pools(env: &mut BTreeMap<String, String>, cpu_millis: u64) {
    let threads = cpu_millis.div_ceil(1000).max(1).to_string();
    for name in POOLS {
        env.entry(name.to_owned()).or_insert_with(|| threads.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_libraries_make_as_many_threads_as_there_are_processors() {
        // A fractional CPU limit is rounded up, and a count that the caller sets is kept.
        for (cpu_millis, threads) in [(1, "1"), (1000, "1"), (1500, "2"), (4000, "4")] {
            let mut env = [("OMP_NUM_THREADS".to_owned(), "7".to_owned())].into();
            limit_thread_pools(&mut env, cpu_millis);
            assert_eq!(
                (env["OPENBLAS_NUM_THREADS"].as_str(), env["OMP_NUM_THREADS"].as_str()),
                (threads, "7")
            );
            assert_eq!(env.len(), POOLS.len());
        }
    }
}
