//! Access to the folders of sessions.

use std::sync::Arc;

use api::SessionId;

use crate::{Folder, Node};

impl Node {
    /// Returns the folder of a session.
    pub fn folder(&self, project: &str, session: &SessionId) -> Folder {
        Folder::new(Arc::clone(&self.shared.folders), project, session)
    }
}
