//! Code execution within a call: configures the interpreter, code runs and contexts.

use api::code::{Code, ContextInfo, ContextSpec, Variable};
use api::exec::ExecSpec;
use api::host::Host;
use api::policy::{Policy, Preset};
use api::trace::STEP;
use api::{ContextId, ErrorCode, Layer, Ran, Retry};
use guest_client::interpreter::limit_thread_pools;
use host::error::Error;
use tracing::{Instrument as _, info_span};

use super::Call;
use crate::journal::SandboxRecord;

/// Environment variable that sets pip's package index, and the index that pip uses if the variable is not
/// set.
const INDEX: &str = "PIP_INDEX_URL";
const USUAL_INDEX: &str = "pypi.org";

impl Call {
    /// Creates a context with this ID. The template provides the variables and the working directory that the
    /// spec does not set. Repeating the request has no effect.
    ///
    /// # Errors
    /// The request is invalid, the ID belongs to a different context, or the context's process could not be
    /// started.
    pub async fn context(&self, id: &ContextId, spec: ContextSpec) -> Result<ContextInfo, Error> {
        spec.check().map_err(Error::Request)?;
        let record = self.handle().record();
        let ContextSpec { language, cwd, env } = spec;
        let given = self.given(&record, ExecSpec { cwd, env, ..ExecSpec::default() });
        let spec = ContextSpec { language, cwd: given.cwd, env: given.env };
        if !record.sandbox.policy.secrets.is_empty() {
            self.handle().trust(self.sandbox()).await?;
        }
        self.prepare(&record).await?;
        self.sandbox().create_context(id, &spec).await
    }

    /// Lists all contexts of the sandbox.
    ///
    /// # Errors
    /// The sandbox has ended or does not respond.
    pub async fn contexts(&self) -> Result<Vec<ContextInfo>, Error> {
        self.sandbox().contexts().await
    }

    /// Removes a context, and stops the cell that is running in it.
    ///
    /// # Errors
    /// The context is unknown, or the sandbox has ended.
    pub async fn remove_context(&self, id: &ContextId) -> Result<(), Error> {
        self.sandbox().remove_context(id).await
    }

    /// Restarts a context, which loses its variables.
    ///
    /// # Errors
    /// The context is unknown, or its process could not be started.
    pub async fn restart_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        self.prepare(&self.handle().record()).await?;
        self.sandbox().restart_context(id).await
    }

    /// Interrupts the cell that is running in a context. The variables survive unless the cell ignores the
    /// interrupt.
    ///
    /// # Errors
    /// The context is unknown, or the sandbox has ended.
    pub async fn interrupt_context(&self, id: &ContextId) -> Result<ContextInfo, Error> {
        self.sandbox().interrupt_context(id).await
    }

    /// Lists the variables of a context.
    ///
    /// # Errors
    /// The context is unknown, or it is running a cell.
    pub async fn variables(&self, id: &ContextId) -> Result<Vec<Variable>, Error> {
        self.sandbox().variables(id).await
    }

    /// Validates and completes the spec of a code exec. A cell in a context gets only its own variables,
    /// because the context already has all others.
    pub(crate) async fn coded(
        &self,
        record: &SandboxRecord,
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

    /// Completes a spec with the variables from the policy, the template and the limits of the sandbox.
    fn given(&self, record: &SandboxRecord, spec: ExecSpec) -> ExecSpec {
        let mut spec = self.handle().dressed(record, spec);
        limit_thread_pools(&mut spec.env, record.sandbox.limits.cpu_millis);
        spec
    }

    /// Sends the configuration of the interpreter to the guest, unless this process has done so already.
    async fn prepare(&self, record: &SandboxRecord) -> Result<(), Error> {
        let (handle, sandbox) = (self.handle(), self.sandbox());
        if !handle.is_prepared() {
            let cpu_millis = record.sandbox.limits.cpu_millis;
            let preparing = sandbox.set_interpreter(&record.imports, &record.env, cpu_millis);
            preparing.instrument(info_span!(target: STEP, "interpreter")).await?;
            handle.now_prepared();
        }
        Ok(())
    }
}

/// Rejects a request for packages before anything runs, if the policy does not allow the package index.
fn check_packages(policy: &Policy, code: &Code) -> Result<(), api::Error> {
    let wanted = !code.requirements.is_empty() || code.install_missing;
    let usual = Host::parse(USUAL_INDEX)?;
    if !wanted
        || policy.presets.contains(&Preset::PythonPackages)
        || egress::decide(policy, &usual, 443, &egress::RequestKind::Tunnel).is_ok()
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
