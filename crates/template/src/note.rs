//! The template fields that the image format lacks, stored in a label of the image.

use api::limits::WantedLimits;
use api::policy::Policy;
use host::error::Error;
use serde::{Deserialize, Serialize};

use crate::{Posture, Template};

/// The label of an image that holds the note.
pub(super) const LABEL: &str = "dev.bellglass.template";

/// The template fields that the image format lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Note {
    cwd: Option<String>,
    policy: Policy,
    start: Option<Vec<String>>,
    ready: Option<Vec<String>>,
    imports: Vec<String>,
    limits: WantedLimits,
    posture: Posture,
}

impl Note {
    pub(super) fn of(template: &Template) -> Self {
        Self {
            cwd: template.cwd.clone(),
            policy: template.policy.clone(),
            start: template.start.clone(),
            ready: template.ready.clone(),
            imports: template.imports.clone(),
            limits: template.limits,
            posture: template.posture,
        }
    }

    /// Returns an error if a recipe could not contain these values.
    pub(super) fn check(&self) -> Result<(), Error> {
        crate::recipe::check_policy(&self.policy)?;
        self.limits.over(api::limits::Limits::default()).check().map_err(Error::Request)?;
        for command in self.start.iter().chain(&self.ready) {
            crate::recipe::check_command(command)?;
        }
        self.cwd.as_deref().map_or(Ok(()), crate::recipe::check_directory)?;
        crate::recipe::check_imports(&self.imports)
    }

    /// Returns the template with the fields of this note.
    pub(super) fn written_on(self, template: Template) -> Template {
        let Self { cwd, policy, start, ready, imports, limits, posture } = self;
        Template { cwd, policy, start, ready, imports, limits, posture, ..template }
    }
}
