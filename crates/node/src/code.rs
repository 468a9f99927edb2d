//! Running code: what its interpreter begins with, what a run or a context is given, and contexts, which are interpreters that stay.
//!
//! A run of code is an exec ([`crate::exec`]); this is what is different about it. Contexts live in the guest's table as execs do.

use std::collections::BTreeMap;
use std::time::Duration;

use api::code::{Code, ContextInfo, ContextSpec, InterpreterInfo, InterpreterSpec, Variable};
use api::exec::ExecSpec;
use api::host::Host;
use api::policy::{Policy, Preset};
use api::trace::STEP;
use api::{ContextId, ErrorCode, Layer, Ran, Retry};
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{Instrument as _, info_span};

use crate::entry::Call;
use crate::error::Error;
use crate::exec::{ANSWER_WITHIN, CODE_WITHIN};
use crate::journal::Record;
use crate::link::{Ask, Link};
use crate::sandbox::Sandbox;

/// A guest has ten seconds to ask a context for its variables, five to end a cell; an answer takes a little longer.
const ASKED_WITHIN: Duration = Duration::from_secs(20);
/// Where pip looks for packages, and where it does unless this variable names another place.
const INDEX: &str = "PIP_INDEX_URL";
const USUAL_INDEX: &str = "pypi.org";
/// Native libraries make as many threads as the machine has processors, unless one of these says otherwise.
const POOLS: [&str; 6] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
];

impl Call {
    /// Makes a context under this id, with the template's variables and directory where it has none of its own. The same call
    /// again makes nothing.
    ///
    /// # Errors
    /// The request is wrong, the id is another one's, or its process could not be started.
    pub async fn context(&self, id: &ContextId, spec: ContextSpec) -> Result<ContextInfo, Error> {
        spec.check().map_err(Error::Request)?;
        let record = self.entry().record();
        let ContextSpec { language, cwd, env } = spec;
        let given = self.given(&record, ExecSpec { cwd, env, ..ExecSpec::default() });
        let spec = ContextSpec { language, cwd: given.cwd, env: given.env };
        if !record.sandbox.policy.secrets.is_empty() {
            self.entry().trust(self.sandbox_and_disk().0).await?;
        }
        self.prepare(&record).await?;
        asked(self.link(), (Method::PUT, format!("/contexts/{id}")), Some(&spec), CODE_WITHIN).await
    }

    /// All its contexts.
    ///
    /// # Errors
    /// The sandbox has ended or does not answer.
    pub async fn contexts(&self) -> Result<Vec<ContextInfo>, Error> {
        asked(self.link(), (Method::GET, "/contexts".into()), NOTHING, ANSWER_WITHIN).await
    }

    /// Ends a context, and the cell that runs in it.
    ///
    /// # Errors
    /// It is not known, or the sandbox has ended.
    pub async fn remove_context(&self, id: &ContextId) -> Result<(), Error> {
        asked(self.link(), (Method::DELETE, format!("/contexts/{id}")), NOTHING, ASKED_WITHIN).await
    }

    /// Has a context begin anew, without its variables.
    ///
    /// # Errors
    /// It is not known, or its process could not be started.
    pub async fn restart_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        self.prepare(&self.entry().record()).await?;
        asked(self.link(), (Method::POST, format!("/contexts/{id}/restart")), NOTHING, CODE_WITHIN).await
    }

    /// Ends the cell that runs in a context; its variables stay where the cell heeds that.
    ///
    /// # Errors
    /// It is not known, or the sandbox has ended.
    pub async fn interrupt_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        asked(self.link(), (Method::POST, format!("/contexts/{id}/interrupt")), NOTHING, ASKED_WITHIN).await
    }

    /// What a context has in its variables.
    ///
    /// # Errors
    /// It is not known, or runs a cell.
    pub async fn variables(&self, id: &ContextId) -> Result<Vec<Variable>, Error> {
        asked(self.link(), (Method::GET, format!("/contexts/{id}/variables")), NOTHING, ASKED_WITHIN).await
    }

    /// What code is asked to do, as it is told to the guest. A cell has only what it says itself: its context has the rest.
    pub(crate) async fn coded(
        &self,
        record: &Record,
        spec: ExecSpec,
        code: &Code,
    ) -> Result<ExecSpec, Error> {
        let own_index = [&spec.env, &record.env].iter().any(|env| env.contains_key(INDEX));
        if !own_index {
            check_packages(&record.sandbox.policy, code).map_err(Error::Request)?;
        }
        self.prepare(record).await?;
        Ok(if code.context.is_some() { spec } else { self.given(record, spec) })
    }

    /// What the request says, and what the policy, the template and the limits of the sandbox say where it does not.
    fn given(&self, record: &Record, spec: ExecSpec) -> ExecSpec {
        let mut spec = self.entry().dressed(record, spec);
        pool(&mut spec.env, record.sandbox.limits.cpu_millis);
        spec
    }

    /// Tells the guest what its interpreter begins with, unless this process has.
    async fn prepare(&self, record: &Record) -> Result<(), Error> {
        let (entry, (sandbox, _)) = (self.entry(), self.sandbox_and_disk());
        if !entry.is_prepared() {
            let cpu_millis = record.sandbox.limits.cpu_millis;
            let preparing = sandbox.prepare(&record.imports, &record.env, cpu_millis);
            preparing.instrument(info_span!(target: STEP, "interpreter")).await?;
            entry.now_prepared();
        }
        Ok(())
    }

    fn link(&self) -> &Link {
        self.sandbox_and_disk().0.link()
    }
}

impl Sandbox {
    /// Says what its interpreter begins with. Can be repeated; nothing is started by it.
    pub(crate) async fn prepare(
        &self,
        imports: &[String],
        env: &BTreeMap<String, String>,
        cpu_millis: u64,
    ) -> Result<(), Error> {
        let mut spec = InterpreterSpec { imports: imports.to_vec(), env: env.clone() };
        pool(&mut spec.env, cpu_millis);
        asked(self.link(), (Method::PUT, "/interpreter".into()), Some(&spec), ANSWER_WITHIN).await
    }

    /// How its interpreter is doing; it is started if it does not run.
    pub(crate) async fn interpreter(&self) -> Result<InterpreterInfo, Error> {
        asked(self.link(), (Method::GET, "/interpreter".into()), NOTHING, CODE_WITHIN).await
    }
}

/// No body.
const NOTHING: Option<&()> = None;

async fn asked<T: DeserializeOwned>(
    link: &Link,
    (method, path): (Method, String),
    body: Option<&impl Serialize>,
    within: Duration,
) -> Result<T, Error> {
    let body = body.map(serde_json::to_vec).transpose();
    let body = body.map_err(|error| Error::Protocol(error.to_string()))?;
    link.call(&Ask { method, path, body: body.map(Bytes::from).unwrap_or_default() }, within).await
}

/// Makes pools of native threads as large as the processors it has, unless it says otherwise.
fn pool(env: &mut BTreeMap<String, String>, cpu_millis: u64) {
    let threads = cpu_millis.div_ceil(1000).max(1).to_string();
    for name in POOLS {
        env.entry(name.to_owned()).or_insert_with(|| threads.clone());
    }
}

/// Refuses packages where none can come in, before anything runs.
fn check_packages(policy: &Policy, code: &Code) -> Result<(), api::Error> {
    let wanted = !code.requirements.is_empty() || code.install_missing;
    let usual = Host::parse(USUAL_INDEX)?;
    if !wanted
        || policy.presets.contains(&Preset::PythonPackages)
        || egress::decide(policy, &usual, 443, &egress::Ask::Tunnel).is_ok()
    {
        return Ok(());
    }
    Err(api::Error {
        code: ErrorCode::Forbidden,
        message: "the sandbox's policy does not allow Python packages".into(),
        layer: Layer::Policy,
        ran: Ran::No,
        retry: Retry::Useless,
        fix:
            "Create the sandbox with the preset `python-packages` in its policy, or omit `requirements` and \
              `install_missing` and use the packages of its template."
                .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_libraries_make_as_many_threads_as_there_are_processors() {
        // A fractional CPU limit is rounded up, and a count that the caller sets is kept.
        for (cpu_millis, threads) in [(1, "1"), (1000, "1"), (1500, "2"), (4000, "4")] {
            let mut env = [("OMP_NUM_THREADS".to_owned(), "7".to_owned())].into();
            pool(&mut env, cpu_millis);
            assert_eq!(
                (env["OPENBLAS_NUM_THREADS"].as_str(), env["OMP_NUM_THREADS"].as_str()),
                (threads, "7")
            );
            assert_eq!(env.len(), POOLS.len());
        }
    }

    #[test]
    fn packages_are_refused_where_none_can_come_in() {
        let wants = Code { source: "x".into(), requirements: vec!["numpy".into()], ..Code::default() };
        let refused = check_packages(&Policy::default(), &wants).unwrap_err();
        assert_eq!((refused.code, refused.ran), (ErrorCode::Forbidden, Ran::No));
        assert!(refused.fix.contains("python-packages"));
        let installs = Code { install_missing: true, requirements: Vec::new(), ..wants.clone() };
        assert!(check_packages(&Policy::default(), &installs).is_err());
        let lets = Policy::of_words(&["python-packages"]).unwrap();
        assert_eq!(check_packages(&lets, &wants), Ok(()));
        let named = Policy::of_words(&["pypi.org", "files.pythonhosted.org"]).unwrap();
        assert_eq!(check_packages(&named, &wants), Ok(()));
        assert_eq!(check_packages(&Policy::default(), &Code { requirements: Vec::new(), ..wants }), Ok(()));
    }
}
