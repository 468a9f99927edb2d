//! State that all routes share.

use std::sync::Arc;

use axum::extract::FromRef;
use control::Platform;
use tools::mcp::Service;

use crate::mcp;
use crate::ports::Ports;
use crate::ports::name::Domain;

/// State that all routes share. Cheap to clone; clones share the same state.
#[derive(Clone)]
pub struct App {
    /// Platform that handles the requests.
    pub platform: Arc<Platform>,
    /// State for access to sandbox ports.
    pub ports: Arc<Ports>,
    /// Service for MCP clients.
    pub(crate) mcp: Arc<Service>,
}

impl App {
    /// Creates the state for a platform whose ports have host names below `domain`.
    pub fn new(platform: Arc<Platform>, domain: Domain) -> Self {
        Self { platform, ports: Arc::new(Ports::under(domain)), mcp: Arc::new(mcp::service()) }
    }
}

impl FromRef<App> for Arc<Platform> {
    fn from_ref(app: &App) -> Self {
        Self::clone(&app.platform)
    }
}

impl FromRef<App> for Arc<Service> {
    fn from_ref(app: &App) -> Self {
        Self::clone(&app.mcp)
    }
}
