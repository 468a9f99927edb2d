//! Grants, which are the rights of requests, and needs, which are the requirements of routes.

use std::ops::Deref;
use std::sync::Arc;

use api::SandboxId;
use api::account::Role;

use crate::account::Account;

/// The rights of one request: its credential, its account (project, role, quota), its reach and its expiry.
pub struct Grant {
    /// Kind of credential that the request presented.
    pub credential: Credential,
    /// Account of the project, with the API key that the request presented or, for a token, a synthetic key.
    pub account: Arc<Account>,
    /// Resources that the grant permits access to.
    pub reach: Reach,
}

/// Kind of credential that yields a grant. A new kind (such as a node's identity, a signed token or a console
/// session) needs a variant here, a separate type, and its own lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Credential {
    /// An API key.
    Key,
    /// The agent token of a sandbox.
    Agent,
    /// The traffic token, which E2B's SDKs send with requests to ports and contexts.
    Traffic,
    /// An E2B file signature, which is computed from the agent token.
    Signature,
    /// A ticket, which authorizes a single request.
    Ticket,
}

/// Resources that a grant covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All resources of a project.
    Project,
    /// One sandbox.
    Sandbox(SandboxId),
    /// The code interpreter contexts of one sandbox.
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
    /// One archive for a template build.
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

/// Credential that a route requires before its handler runs. The table in `docs/authority.md` lists the
/// credentials that satisfy each need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// No credential: the route is open to any caller.
    Nothing,
    /// An API key of at least this role.
    Key(Role),
    /// The agent token of the sandbox that the request names.
    Agent,
    /// The agent token or the traffic token of the sandbox that the request names.
    Contexts,
    /// The agent token, or a file signature that permits this operation on the requested path.
    File(FileAct),
    /// A ticket for the requested upload. A ticket can be used only once.
    Ticket,
}

/// Extractor that declares the need of a route. The extraction succeeds only if the request satisfies this
/// need.
pub trait States {
    /// Need of the route.
    const NEED: Need;
}

impl Grant {
    /// Creates the grant of a request that presented an API key.
    pub fn of_key(account: Arc<Account>) -> Self {
        Self { credential: Credential::Key, account, reach: Reach::Project }
    }

    /// Returns the expiry time of the grant in milliseconds since 1970, or `None` if the grant does not
    /// expire.
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
    /// Returns the name of this kind of credential. For tokens, the audit log records this name in place of a
    /// key ID.
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
    /// Returns the name that `docs/authority.md` uses for this need.
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
