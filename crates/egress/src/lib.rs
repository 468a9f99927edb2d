//! The broker: the egress proxy for sandboxes.
//!
//! A sandbox has only a loopback interface. The guest accepts connections on it and forwards each one to the
//! node as a stream of bytes. The broker serves these streams as a proxy that enforces the sandbox's policy.
//!
//! ```text
//! program inside ──127.0.0.1:3128──▶ guest ──channel──▶ Broker::serve
//!    first byte 5: SOCKS ─┐
//!    else: HTTP ──────────┴▶ canonical host ─▶ decide ─▶ resolve ─▶ refuse private addresses ─▶ dial ─▶ Flow: metered, revocable
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`decide`](decide()) | the decision whether a policy allows a request, without I/O |
//! | [`address`] | the addresses that no policy can allow |
//! | `resolve` | name resolution |
//! | [`party`] | one sandbox: its policy, its usage, and the receiver of reports |
//! | `tally` | reports of decisions; equal decisions are combined and counted |
//! | `place` | the connection limits of sandboxes and projects |
//! | `body` | response bodies |
//! | `begun` | the connection of a program in the sandbox to the broker |
//! | `flow` | one outbound connection, which is metered and is closed when the policy no longer allows it |
//! | `http` | the HTTP proxy: requests and `CONNECT` |
//! | `answer` | one request to a host, and its response head, with limits on size and time |
//! | [`gate`] | the package proxy, which has its own host name and a cache |
//! | `bound` | hosts with bound secrets: TLS is terminated, and each request is inspected |
//! | [`secret`] | secrets, which are known only by name until they are used |
//! | [`authority`] | the certificate authority that a project's sandboxes trust for hosts with bound secrets |
//! | `scrub` | removal of secret values from responses |
//! | `socks` | SOCKS 5 |
//! | `tunnel` | copying of bytes in both directions, after a check of the TLS server name |
//!
//! Invariants: the host that is matched against the policy is the host that is resolved and dialled.
//! Addresses are checked after resolution, and only a checked address is dialled. Every decision is reported
//! once, or counted if there are too many. A tunnel is checked against the policy when it is opened. If it
//! leads to port 80 of a host that a rule names, or to a host with a bound secret, each request inside the
//! tunnel is checked as well. TLS is decrypted only for hosts with a bound secret.

#![forbid(unsafe_code)]

pub mod address;
mod answer;
pub mod authority;
mod begun;
mod body;
mod bound;
mod decide;
mod flow;
pub mod gate;
mod http;
pub mod party;
mod place;
mod resolve;
mod scrub;
pub mod secret;
mod socks;
mod tally;
mod tunnel;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::host::Host;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub use authority::Authority;
pub use decide::{Allowed, RequestKind, decide};
pub use gate::Gate;
pub use party::{BrokerReport, Decision, Party};
pub use secret::{Keyring, SecretValue, Vault};

use begun::Begun;
use flow::{AllowedRequest, Flow};
use party::OutboundRequest;
use place::{ConnectionPermit, Projects};
use resolve::Names;

/// Timeout for the first byte of a connection. Programs send it as soon as they have connected.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(60);
/// Timeout for connecting to one address of a host.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// Timeout for resolving a host and trying all of its addresses.
const DIAL_ALL_WITHIN: Duration = Duration::from_secs(15);
/// The version number, which is the first byte of every SOCKS 5 connection.
const SOCKS: u8 = 5;

/// The egress proxy: accepts connections from sandboxes, and opens the outbound connections that their
/// policies allow.
pub struct Broker {
    names: Names,
    projects: Projects,
    gate: Gate,
    outward: bound::Outward,
}

/// The refusal of a request, with a reason that is written for the program that sent it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub kind: RefusalKind,
    pub why: String,
}

/// The category of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// The request is not a valid proxy request.
    Wrong,
    /// The policy does not allow the request.
    Denied,
    /// The package or file does not exist.
    Missing,
    /// A rate or connection limit is exceeded.
    Busy,
    /// The host has no address that may be dialled, or does not respond.
    Unreachable,
}

/// How the broker treats the bytes of a tunnel.
pub(crate) enum TunnelMode {
    /// The bytes are parsed as plaintext HTTP.
    Clear,
    /// TLS is terminated and HTTP is parsed, because a secret is bound to the host.
    Bound(Arc<rustls::ServerConfig>),
    /// The bytes are passed through; only the TLS server name is checked.
    Blind,
}

/// A program's connection while the broker serves it.
#[derive(Clone)]
pub(crate) struct Visit {
    pub broker: Arc<Broker>,
    pub party: Arc<Party>,
    /// The connection's slot: its permits under the connection limits of its sandbox and its project.
    pub place: ConnectionPermit,
}

impl Visit {
    /// Checks the request against the policy, resolves the host and dials it. Runs to completion even if the
    /// program disconnects, so that the decision is always reported.
    async fn reach(&self, asked: OutboundRequest) -> Result<Flow, Refusal> {
        let (broker, party) = (Arc::clone(&self.broker), Arc::clone(&self.party));
        // Dialling can outlive the program's connection, so the dialling task holds the slot too.
        let place = (!api::defence::is_off("N-34")).then(|| self.place.clone());
        let reaching = tokio::spawn(async move { broker.reach(&party, asked, place).await });
        reaching.await.unwrap_or_else(|_| Err(Refusal::unreachable("the broker failed".into())))
    }

    /// Returns how a tunnel's bytes are treated.
    async fn way(&self, flow: &Flow) -> Result<TunnelMode, Refusal> {
        if flow.allowed.bound {
            return Ok(TunnelMode::Bound(bound::in_place_of(self, &flow.asked).await?));
        }
        Ok(if http::is_clear(flow) { TunnelMode::Clear } else { TunnelMode::Blind })
    }

    /// Serves a tunnel until it ends.
    async fn carry<S>(self, stream: S, flow: Flow, way: TunnelMode)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match way {
            TunnelMode::Clear => http::serve_inside(stream, flow, self).await,
            TunnelMode::Blind => tunnel::pass(stream, flow).await,
            TunnelMode::Bound(config) => {
                // Each request in the tunnel is checked separately and opens its own connection.
                let asked = flow.asked.clone();
                drop(flow);
                bound::serve(stream, asked, config, self).await;
            }
        }
    }
}

impl Broker {
    /// Creates a broker with the given gate and the resolver that this machine is configured to use.
    pub fn new(gate: Gate) -> Self {
        Self {
            names: Names::default(),
            projects: Projects::default(),
            gate,
            outward: bound::Outward::default(),
        }
    }

    /// Returns the package gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Serves one connection of a program in the sandbox until it ends.
    pub async fn serve<S>(self: Arc<Self>, stream: S, party: Arc<Party>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut stream = Begun::new(stream);
        let Some(place) = party.place(&self.projects) else {
            if let Some(turned_away) = party.turned_away() {
                stream.take(ConnectionPermit::of([turned_away]));
                let _ = stream.write_all(http::no_place().as_bytes()).await;
                let _ = stream.shutdown().await;
            }
            return;
        };
        stream.take(place.clone());
        let first = tokio::time::timeout(FIRST_BYTE_WITHIN, stream.first()).await;
        let Ok(Ok(Some(first))) = first else { return };
        let visit = Visit { broker: self, party, place };
        if first == SOCKS { socks::serve(stream, visit).await } else { http::serve(stream, visit).await }
    }

    /// Checks the request against the policy, resolves the host and dials it. Reports the outcome once, but
    /// only counts refusals with the kind `Busy`.
    async fn reach(
        &self,
        party: &Arc<Party>,
        asked: OutboundRequest,
        place: Option<ConnectionPermit>,
    ) -> Result<Flow, Refusal> {
        // Subscribed before the decision, so that the flow sees every later change of the policy.
        let policy = party.policy();
        let reached = self.connect(party, &policy.borrow(), &asked);
        let reached = tokio::time::timeout(DIAL_ALL_WITHIN, reached).await.unwrap_or_else(|_| {
            Err(Refusal::unreachable(format!(
                "{} did not respond within {DIAL_ALL_WITHIN:?}",
                asked.authority()
            )))
        });
        match reached {
            Ok((stream, allowed)) => {
                party.tell(&asked, Ok(&allowed.rule));
                let request = AllowedRequest { asked, allowed };
                Ok(Flow::new(stream, place, Arc::clone(party), policy, request))
            }
            Err(refusal) => {
                if refusal.kind != RefusalKind::Busy {
                    party.tell(&asked, Err(&refusal.why));
                }
                Err(refusal)
            }
        }
    }

    fn connect<'a>(
        &'a self,
        party: &'a Party,
        policy: &api::policy::Policy,
        asked: &'a OutboundRequest,
    ) -> impl Future<Output = Result<(TcpStream, Allowed), Refusal>> + Send + use<'a> {
        let allowed = if party.wait(policy).is_none() {
            Err(Refusal { kind: RefusalKind::Denied, why: flow::SPENT.into() })
        } else {
            decide(policy, &asked.host, asked.port, &asked.ask)
                .map_err(|why| Refusal { kind: RefusalKind::Denied, why })
        };
        async move {
            let allowed = allowed?;
            let mut why = None;
            for address in self.addresses(party, asked).await? {
                match tokio::time::timeout(DIAL_WITHIN, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => {
                        let _ = stream.set_nodelay(true);
                        return Ok((stream, allowed));
                    }
                    Ok(Err(error)) => why = Some(error.to_string()),
                    Err(_) => why = Some(format!("no response within {DIAL_WITHIN:?}")),
                }
            }
            let why = why.unwrap_or_else(|| "no address".into());
            Err(Refusal::unreachable(format!("cannot connect to {}: {why}", asked.authority())))
        }
    }

    /// Returns the addresses of a host that may be dialled. The error does not reveal whether an internal
    /// name exists.
    async fn addresses(&self, party: &Party, asked: &OutboundRequest) -> Result<Vec<SocketAddr>, Refusal> {
        let found: Vec<IpAddr> = match &asked.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                party.name(name)?;
                self.names.look_up(name).await
            }
        };
        let mut refused = None;
        let mut addresses = Vec::new();
        for one in found {
            match address::refused(one) {
                None => addresses.push(SocketAddr::new(one, asked.port)),
                why => refused = why,
            }
        }
        match (addresses.is_empty(), refused, &asked.host) {
            (false, _, _) => Ok(addresses),
            (true, Some(why), Host::Address(_)) => Err(Refusal {
                kind: RefusalKind::Denied,
                why: format!("{} is {why}; no policy can allow it", asked.host),
            }),
            (true, _, _) => Err(Refusal::unreachable(format!(
                "{} cannot be resolved, or has only addresses that no policy can allow (private, local or reserved)",
                asked.host
            ))),
        }
    }
}

impl Refusal {
    fn unreachable(why: String) -> Self {
        Self { kind: RefusalKind::Unreachable, why }
    }
}
