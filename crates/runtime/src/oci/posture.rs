//! What can be seen from outside of process 1, and what should be.

use api::SandboxId;
use api::posture::Posture;

use super::process::Process;
use super::record::Record;
use crate::{Error, Tier};

pub(super) fn compare(_id: &SandboxId, _record: &Record, _tier: Tier, _process: &Process) -> Result<(Posture, Vec<String>), Error> {
    Ok((Posture::default(), Vec::new()))
}
