//! Grants of requests and needs of routes.

use std::ops::Deref;
use std::sync::Arc;

use api::SandboxId;
use api::account::Role;

use crate::account::Account;

/// The rights of one request: its credential, its account (project, role, quota), its reach and its expiry.
pub struct Grant {
    /// Kind of the credential.
    pub credential: Credential,
    /// The account: the project, and the key of the request or a synthetic key for a token.
    pub account: Arc<Account>,
    /// Resources that the grant permits access to.
    pub reach: Reach,
}

/// Kinds of credentials that yield a grant. A new kind (a node's identity, a signed token, a console session)
/// needs a variant here, a type, and a lookup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    /// An API key.
    Key,
    /// The agent token of a sandbox.
    Agent,
    /// The traffic token, which E2B's SDKs send for ports and contexts.
    Traffic,
    /// A file signature of E2B, computed with the agent token.
    Signature,
    /// A ticket, which is valid for one request.
    Ticket,
}

/// The extent of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All resources of a project.
    Project,
    /// One sandbox.
    Sandbox(SandboxId),
    /// The contexts of the code interpreter of one sandbox.
    Contexts(SandboxId),
    /// One operation on one file of one sandbox.
    File {
        /// The sandbox.
        sandbox: SandboxId,
        /// The path that was signed.
        path: String,
        /// The permitted operation.
        act: FileAct,
    },
    /// One archive of a template's build.
    Archive(String),
}

/// Operation that a file signature permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileAct {
    /// Reading the file.
    Read,
    /// Writing the file.
    Write,
}

/// The credential that a route requires before its handler runs. The table in `docs/authority.md` lists the
/// credentials that satisfy each need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// No credential: the route is open to any caller.
    Nothing,
    /// An API key of at least this role.
    Key(Role),
    /// The agent token of the sandbox that the request names.
    Agent,
    /// The agent token or the traffic token of that sandbox.
    Contexts,
    /// The agent token, or a signature for this path and operation.
    File(FileAct),
    /// A ticket for this upload. The request uses the ticket up.
    Ticket,
}

/// An extractor that states the need of a route. It succeeds only for requests that satisfy the need.
pub trait States {
    /// The need.
    const NEED: Need;
}

impl Grant {
    /// Returns the grant of an API key.
    pub fn of_key(account: Arc<Account>) -> Self {
        Self { credential: Credential::Key, account, reach: Reach::Project }
    }

    /// Returns the time at which the grant expires, in milliseconds since 1970.
    pub fn until_ms(&self) -> Option<u64> {
        self.account.key.expires_at_ms
    }
}

impl Deref for Grant {
    type Target = Account;

    fn deref(&self) -> &Account {
        &self.account
    }
}

impl Credential {
    /// Returns the name that the audit log uses instead of the id of a key.
    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Agent => "sandbox",
            Self::Traffic => "traffic",
            Self::Signature => "signature",
            Self::Ticket => "ticket",
        }
    }
}

impl Need {
    /// Returns the name used in `docs/authority.md`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Key(Role::Read) => "key read",
            Self::Key(Role::Write) => "key write",
            Self::Key(Role::Admin) => "key admin",
            Self::Agent => "agent",
            Self::Contexts => "contexts",
            Self::File(FileAct::Read) => "file read",
            Self::File(FileAct::Write) => "file write",
            Self::Ticket => "ticket",
        }
    }
}
