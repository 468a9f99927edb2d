//! Access to the ports of a sandbox: its tokens, and its public ports.

use std::collections::BTreeSet;

use api::ports::PUBLIC_MAX;
use host::error::Error;
use serde::{Deserialize, Serialize};

use crate::token::{self, Token};

/// Access to the ports of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Token that gives access to all ports.
    pub token: Token<token::AllPorts>,
    /// Token that gives access to the agent to which E2B's SDKs connect. Missing in records from earlier
    /// releases.
    #[serde(default)]
    pub agent: Token<token::Agent>,
    /// Token that E2B's SDKs send to ports and contexts. Missing in records from earlier releases.
    #[serde(default)]
    pub traffic: Token<token::Traffic>,
    /// Public ports, which need no token.
    pub public: BTreeSet<u16>,
    /// True if all ports are public.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_public: bool,
}

impl Ports {
    /// Returns true if a port is public.
    pub fn is_public(&self, port: u16) -> bool {
        self.all_public || self.public.contains(&port)
    }

    /// Makes a port public or private.
    ///
    /// # Errors
    /// The sandbox already has [`PUBLIC_MAX`] public ports.
    pub(crate) fn publish(&mut self, port: u16, public: bool) -> Result<(), Error> {
        if !public {
            self.public.remove(&port);
        } else if self.public.len() < PUBLIC_MAX || self.public.contains(&port) {
            self.public.insert(port);
        } else {
            return Err(too_many_public());
        }
        Ok(())
    }

    /// Creates access settings with fresh tokens and no public ports.
    ///
    /// # Errors
    /// The kernel's random number generator is unavailable.
    pub fn fresh() -> Result<Self, Error> {
        Self::default().with_all_tokens()
    }

    /// Creates a fresh token for each missing token.
    ///
    /// # Errors
    /// The kernel's random number generator is unavailable.
    pub fn with_all_tokens(mut self) -> Result<Self, Error> {
        if self.token.is_empty() {
            self.token = Token::fresh()?;
        }
        if self.agent.is_empty() {
            self.agent = Token::fresh()?;
        }
        if self.traffic.is_empty() {
            self.traffic = Token::fresh()?;
        }
        Ok(self)
    }

    /// Returns true if no token is missing.
    pub fn has_all_tokens(&self) -> bool {
        !(self.token.is_empty() || self.agent.is_empty() || self.traffic.is_empty())
    }
}

fn too_many_public() -> Error {
    Error::Request(api::Error {
        code: api::ErrorCode::LimitExceeded,
        message: format!("the sandbox already has {PUBLIC_MAX} public ports, the maximum"),
        layer: api::Layer::UserCode,
        ran: api::Ran::No,
        retry: api::Retry::Useless,
        fix: "Close one of the public ports first.".into(),
    })
}
