//! The runs that a session has stored, and their output.

use std::collections::VecDeque;

use api::ExecId;
use api::session::Run;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Live;
use super::exec::KeptOutput;
use super::files::whole;
use crate::fault::Answer;
use crate::platform::Platform;

/// Maximum number of runs stored per session.
const RUNS_MAX: usize = 200;
/// Size of the runs on a page, after which the page ends.
const PAGE_BYTES: usize = 1 << 20;

/// Stored form of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredRun {
    pub run: Run,
    /// Hash of the call. A different call with the same ID is a conflict.
    pub call: String,
    pub failed: bool,
    pub kept: [KeptOutput; 2],
}

impl Live {
    /// Returns a page of the runs with these IDs, the oldest first, after the run `after`. Returns true if more
    /// follow.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn runs(
        &self,
        ids: VecDeque<ExecId>,
        after: Option<&ExecId>,
        limit: usize,
    ) -> Result<(Vec<Run>, bool), node::Error> {
        // The oldest runs are dropped. If the run of the cursor was among them, all the others follow it.
        let skipped = after.and_then(|after| ids.iter().position(|id| id == after)).map_or(0, |at| at + 1);
        let (mut runs, mut bytes) = (Vec::new(), 0);
        for id in ids.into_iter().skip(skipped) {
            if bytes > PAGE_BYTES || runs.len() >= limit {
                return Ok((runs, true));
            }
            if let Some(run) = self.run(&id).await? {
                bytes += serde_json::to_vec(&run).map_or(0, |text| text.len());
                runs.push(run);
            }
        }
        Ok((runs, false))
    }

    /// Returns the IDs of all stored runs, the oldest first.
    pub async fn run_ids(&self) -> VecDeque<ExecId> {
        self.record.lock().await.runs.clone()
    }

    /// Returns a stored run.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn run(&self, id: &ExecId) -> Result<Option<Run>, node::Error> {
        Ok(self.written(id).await?.map(|written| written.run))
    }

    /// Returns a run's output on one stream, beginning at an offset (requirement A3.02). A stream may have a
    /// gap, which was not stored. For an offset before the gap, returns the output up to the gap; otherwise,
    /// the output after the gap.
    ///
    /// # Errors
    /// Returns an error if a file system operation fails.
    pub async fn run_output(
        &self,
        id: &ExecId,
        stderr: bool,
        offset: u64,
    ) -> Result<Option<Vec<u8>>, node::Error> {
        let Some(StoredRun { run, kept: [stdout, errors], .. }) = self.written(id).await? else {
            return Ok(None);
        };
        let (kept, name, gap) =
            if stderr { (errors, "stderr", run.stderr_gap) } else { (stdout, "stdout", run.stdout_gap) };
        let Some(bytes) = self.kept_output(id, name, &kept).await? else { return Ok(None) };
        let (from, to) = within(offset, bytes.len() as u64, gap);
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        Ok(Some(bytes.get(place(from)..place(to)).unwrap_or_default().to_vec()))
    }

    /// Returns all stored output of one stream of a run.
    pub(super) async fn kept_output(
        &self,
        id: &ExecId,
        name: &str,
        kept: &KeptOutput,
    ) -> Result<Option<Vec<u8>>, node::Error> {
        Ok(match kept {
            KeptOutput::Nothing => None,
            KeptOutput::Small(text) => STANDARD.decode(text).ok(),
            KeptOutput::Large => match self.folder.read(&["runs", id.as_str(), name]).await? {
                Some(outgoing) => Some(whole(outgoing).await?),
                None => None,
            },
        })
    }

    /// Returns the stored form of a run.
    pub(super) async fn written(&self, id: &ExecId) -> Result<Option<StoredRun>, node::Error> {
        self.folder.json(&["runs", id.as_str(), "record"]).await
    }

    /// Stores a run, and deletes the oldest one if there are too many.
    pub(super) async fn store_run(&self, platform: &Platform, stored: &StoredRun) -> Answer<()> {
        let id = &stored.run.id;
        self.folder.put_json(&["runs", id.as_str(), "record"], stored).await?;
        let mut record = self.record.lock().await;
        if record.runs.contains(id) {
            return Ok(());
        }
        record.runs.push_back(id.clone());
        if record.runs.len() > RUNS_MAX
            && let Some(oldest) = record.runs.pop_front()
        {
            self.folder.remove(&["runs", oldest.as_str()]).await?;
        }
        self.save(platform, &record).await
    }

    /// Deletes a stored run. Succeeds if it does not exist.
    pub(super) async fn forget_run(&self, platform: &Platform, id: &ExecId) -> Answer<()> {
        let mut record = self.record.lock().await;
        if record.runs.contains(id) {
            record.runs.retain(|other| other != id);
            self.save(platform, &record).await?;
        }
        Ok(self.folder.remove(&["runs", id.as_str()]).await?)
    }
}

/// Removes the content of pictures from a response before the response is stored. Pictures are large, and
/// they are already stored as files of the session.
pub(super) fn without_pictures(text: &str) -> Value {
    let mut result: Value = serde_json::from_str(text).unwrap_or_default();
    for file in result.get_mut("files").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(file) = file.as_object_mut() {
            file.remove("base64");
        }
    }
    result
}

/// Converts an offset in the stream into a range of the stored bytes. For an offset before the gap, the range
/// ends at the gap. For any other offset, the range lies after the gap.
fn within(offset: u64, kept: u64, gap: Option<(u64, u64)>) -> (u64, u64) {
    match gap {
        Some((from, _)) if offset < from => (offset, from),
        Some((from, to)) => (offset.max(to) - to + from, kept),
        None => (offset, kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_stream_whatever_was_not_kept() {
        // Requirement A3.02: of 25 bytes, 10 are stored; bytes 5 to 19 are missing.
        for (offset, expected) in
            [(0, (0, 5)), (4, (4, 5)), (5, (5, 10)), (12, (5, 10)), (20, (5, 10)), (23, (8, 10))]
        {
            assert_eq!(within(offset, 10, Some((5, 20))), expected, "{offset}");
        }
        assert_eq!(within(3, 10, None), (3, 10));
    }

    #[test]
    fn what_is_remembered_of_an_answer_has_no_pictures() {
        let text = r#"{"success":true,"files":[{"name":"a.png","base64":"AAAA"}]}"#;
        assert_eq!(without_pictures(text).to_string(), r#"{"files":[{"name":"a.png"}],"success":true}"#);
    }
}
