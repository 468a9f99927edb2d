//! What may leave a sandbox: the broker.
//!
//! A sandbox has a loopback interface and nothing else. The guest takes connections on it and hands each to the node as a stream of
//! bytes; here they become a proxy that decides.
//!
//! ```text
//! program inside ──127.0.0.1:3128──▶ guest ──channel──▶ Broker::serve
//!    first byte 5: SOCKS ─┐
//!    else: HTTP ──────────┴▶ one canonical host ─▶ decide ─▶ resolve ─▶ refuse what is private ─▶ dial ─▶ Flow: metered, can be cut
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`decide`](decide()) | whether a policy allows something: no I/O |
//! | [`address`] | addresses that no policy opens |
//! | `resolve` | names into addresses |
//! | [`party`] | one sandbox: its policy, what it has used, and who is told |
//! | `tally` | what was decided, as lines: equal ones are counted |
//! | `place` | how many connections a sandbox and a project may have |
//! | `body` | bodies of responses |
//! | `begun` | the connection of a program inside |
//! | `flow` | one connection to the outside: metered, and cut when its policy is changed |
//! | `http` | the HTTP proxy: requests and `CONNECT` |
//! | `answer` | one request to a host, and the head of its answer within bounds |
//! | [`gate`] | packages: a host of its own, with what it fetched before |
//! | `bound` | hosts to which secrets are bound: TLS ends here, and each request is read |
//! | [`secret`] | secrets, by name until the moment of use |
//! | [`authority`] | who vouches for such hosts in the sandboxes of a project |
//! | `scrub` | takes values of secrets out of answers |
//! | `socks` | SOCKS 5 |
//! | `tunnel` | bytes both ways, after a look at the name that TLS asks for |
//!
//! Invariants: the host that is matched is the host that is resolved and dialled; an address is looked at after resolution and is the
//! one that is dialled; every decision is told once, or counted where they come as a flood. What goes through a tunnel to port 80 of a name is
//! decided twice: as a tunnel, and request by request; and so is what goes to a host to which a secret is bound. Into no other TLS connection is
//! looked.

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
pub use decide::{Allowed, Ask, decide};
pub use gate::Gate;
pub use party::{Decision, Party, Told};
pub use secret::{Keyring, SecretValue, Vault};

use begun::Begun;
use flow::Flow;
use party::Asked;
use place::{Place, Projects};
use resolve::Names;

/// The first byte of a program that has connected comes at once.
const FIRST_BYTE_WITHIN: Duration = Duration::from_secs(60);
/// One address of a host has so long to answer.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// All of them together.
const DIAL_ALL_WITHIN: Duration = Duration::from_secs(15);
/// The version that begins every SOCKS 5 connection.
const SOCKS: u8 = 5;

/// Takes connections of sandboxes and makes those that are allowed.
pub struct Broker {
    names: Names,
    projects: Projects,
    gate: Gate,
    outward: bound::Outward,
}

/// Why something was not done, in words for the program that asked.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub kind: RefusalKind,
    pub why: String,
}

/// What kind of no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    /// It is no request that a proxy takes.
    Wrong,
    /// No rule allows it.
    Denied,
    /// There is no such thing.
    Missing,
    /// It comes too fast, or there are too many.
    Busy,
    /// The host has no address that may be reached, or does not answer.
    Unreachable,
}

/// How what goes through a tunnel is understood.
pub(crate) enum Way {
    /// As HTTP in the clear.
    Clear,
    /// As HTTP inside TLS, because a secret is bound to the host.
    Bound(Arc<rustls::ServerConfig>),
    /// Not at all, apart from the name that TLS asks for.
    Blind,
}

/// A connection of a program inside, being served.
#[derive(Clone)]
pub(crate) struct Visit {
    pub broker: Arc<Broker>,
    pub party: Arc<Party>,
    /// The place of the connection among those of its sandbox and its project.
    pub place: Place,
}

impl Visit {
    /// Decides, resolves and dials, to the end, also if the program has gone away meanwhile: what was asked is told.
    async fn reach(&self, asked: Asked) -> Result<Flow, Refusal> {
        let (broker, party) = (Arc::clone(&self.broker), Arc::clone(&self.party));
        // Dialling outlives the program's connection, so it holds the place too.
        let place = (!api::defence::is_off("N-34")).then(|| self.place.clone());
        let reaching = tokio::spawn(async move { broker.reach(&party, asked, place).await });
        reaching.await.unwrap_or_else(|_| Err(Refusal::unreachable("the broker failed".into())))
    }

    /// How what goes through a tunnel is to be understood.
    async fn way(&self, flow: &Flow) -> Result<Way, Refusal> {
        if flow.allowed.bound {
            return Ok(Way::Bound(bound::in_place_of(self, &flow.asked).await?));
        }
        Ok(if http::is_clear(flow) { Way::Clear } else { Way::Blind })
    }

    /// Carries a tunnel to its end.
    async fn carry<S>(self, stream: S, flow: Flow, way: Way)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match way {
            Way::Clear => http::serve_inside(stream, flow, self).await,
            Way::Blind => tunnel::pass(stream, flow).await,
            Way::Bound(config) => {
                // Each request in it is decided on its own, and makes a connection of its own.
                let asked = flow.asked.clone();
                drop(flow);
                bound::serve(stream, asked, config, self).await;
            }
        }
    }
}

impl Broker {
    /// A broker with the resolver that this machine is configured for, and packages from this gate.
    pub fn new(gate: Gate) -> Self {
        Self {
            names: Names::default(),
            projects: Projects::default(),
            gate,
            outward: bound::Outward::default(),
        }
    }

    /// Its gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Serves one connection of a program inside to its end.
    pub async fn serve<S>(self: Arc<Self>, stream: S, party: Arc<Party>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut stream = Begun::new(stream);
        let Some(place) = party.place(&self.projects) else {
            if let Some(turned_away) = party.turned_away() {
                stream.take(Place::of([turned_away]));
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

    /// Decides, resolves and dials. Whatever comes of it is told once.
    async fn reach(&self, party: &Arc<Party>, asked: Asked, place: Option<Place>) -> Result<Flow, Refusal> {
        // Taken before anything is decided: a change from now on is seen by the flow.
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
                Ok(Flow::new((stream, place), Arc::clone(party), policy, asked, allowed))
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
        asked: &'a Asked,
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

    /// The addresses of a host that may be dialled. That an internal name exists is not told.
    async fn addresses(&self, party: &Party, asked: &Asked) -> Result<Vec<SocketAddr>, Refusal> {
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
