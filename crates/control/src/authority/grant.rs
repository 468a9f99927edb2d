//! The grant of a request, and the need of a route.

use std::ops::Deref;
use std::sync::Arc;

use api::SandboxId;
use api::account::Role;

use crate::account::Account;

/// What one request may do: by which credential, for which account (project, role, quota), how far, and until when.
pub struct Grant {
    /// The kind of credential that was shown.
    pub credential: Credential,
    /// The project it acts for, with the key that was shown, or one that stands for the token.
    pub account: Arc<Account>,
    /// What it reaches.
    pub reach: Reach,
}

/// Kinds of credentials that lead to a grant. A later kind (a node's identity, a signed token, a session of the console) is a
/// variant here, a type of its own, and a lookup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    /// An API key.
    Key,
    /// The token of a sandbox's agent.
    Agent,
    /// The token that E2B's SDKs show for ports and contexts.
    Traffic,
    /// A signature of E2B's, made with the token of the agent.
    Signature,
    /// A ticket, which is used up by one request.
    Ticket,
}

/// How far a grant reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everything of a project.
    Project,
    /// One sandbox.
    Sandbox(SandboxId),
    /// The contexts of the code interpreter of one sandbox.
    Contexts(SandboxId),
    /// One file of one sandbox, for one act.
    File {
        /// The sandbox.
        sandbox: SandboxId,
        /// The path as it was signed.
        path: String,
        /// What may be done.
        act: FileAct,
    },
    /// One archive of a template's build.
    Archive(String),
}

/// What a file signature allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileAct {
    /// Reading it.
    Read,
    /// Writing it.
    Write,
}

/// What a route needs before its handler runs. The table in `docs/authority.md` says which credential answers which need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Nothing: anybody may ask.
    Nothing,
    /// An API key of at least this role.
    Key(Role),
    /// The token of the agent of the sandbox that the request names.
    Agent,
    /// The same, or the traffic token of that sandbox.
    Contexts,
    /// The token of the agent, or a signature for this path and act.
    File(FileAct),
    /// A ticket for this upload, which it uses up.
    Ticket,
}

/// An extractor that states what a route needs: it exists only in requests that have shown it.
pub trait States {
    /// What it needs.
    const NEED: Need;
}

impl Grant {
    /// The grant of an API key.
    pub fn of_key(account: Arc<Account>) -> Self {
        Self { credential: Credential::Key, account, reach: Reach::Project }
    }

    /// Until when it is valid, in milliseconds since 1970.
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
    /// What the audit log calls it in place of the id of a key.
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
    /// How `docs/authority.md` names it.
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
