//! `bellglass forward`: forwards ports of a sandbox to this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use api::{Error, SandboxId, ports};
use client::Client;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::connect::{ServerConnection, answer, explain};
use crate::{platform, show};

/// Size of the copy buffer for each direction of a connection.
const COPY_BYTES: usize = 64 * 1024;
/// Delay before the next attempt if a connection cannot be accepted, for example because there are no free
/// descriptors.
const ACCEPT_AGAIN: std::time::Duration = std::time::Duration::from_millis(100);

/// Arguments of `bellglass forward`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  bellglass forward build 8000\n  bellglass forward build 8080:8000 5433:5432\n  \
    bellglass forward --url build 8000\n\n\
    Any TCP protocol works. Each connection to the local port opens a connection to the port in the\n\
    sandbox. When the server restarts, open connections are closed, and new connections wait until the\n\
    server is ready. The command runs until it is interrupted.\n\n\
    A browser does not need forwarding: --url prints the port's own URL, with the token of the sandbox.\n\
    Anyone who has that URL can open all ports of this sandbox."
)]
pub struct Arguments {
    /// Sandbox, by id or name.
    #[arg(value_name = "SANDBOX")]
    sandbox: SandboxId,
    /// Ports of the sandbox to forward, such as 8080:8000. LOCAL defaults to REMOTE; LOCAL 0 picks a
    /// free port.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    ports: Vec<Pair>,
    /// Print the URL of each port, with the token of the sandbox, and exit.
    #[arg(long)]
    url: bool,
}

/// Local port and the sandbox port to which it is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    local: u16,
    remote: u16,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| ports::number(text).map_err(|error| error.message);
        match text.split_once(':') {
            None => number(text).map(|port| Self { local: port, remote: port }),
            Some(("0", remote)) => Ok(Self { local: 0, remote: number(remote)? }),
            Some((local, remote)) => Ok(Self { local: number(local)?, remote: number(remote)? }),
        }
    }
}

/// Forwards connections until the command is interrupted.
pub async fn run(connection: &ServerConnection, arguments: Arguments) -> Result<ExitCode, Error> {
    let client = connection.client()?;
    let Arguments { sandbox, ports, url } = arguments;
    if url {
        for Pair { remote, .. } in ports {
            let port = answer(&client, client.port(&sandbox, remote)).await?;
            show::line(&format!("{}/?{}={}", port.url, ports::TOKEN_QUERY, port.token))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    // If the sandbox does not exist, the command fails here, before it listens. From here on, it uses the ID,
    // because the name could later belong to a different sandbox.
    let sandbox = answer(&client, client.sandbox(&sandbox)).await?.id;
    let places = Arc::new(Semaphore::new(ports::CONNECTIONS_MAX));
    for Pair { local, remote } in ports {
        let listener = listen(local, remote).await?;
        let address = listener.local_addr().map_err(|error| platform(error.to_string()))?;
        show::line(&format!("http://{address} forwards to port {remote} of {sandbox}"))?;
        let (client, sandbox, places) = (client.clone(), sandbox.clone(), Arc::clone(&places));
        tokio::spawn(take(listener, client, sandbox, remote, places));
    }
    crate::wait_for_end().await?;
    Ok(ExitCode::SUCCESS)
}

async fn listen(local: u16, remote: u16) -> Result<TcpListener, Error> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, local));
    TcpListener::bind(address).await.map_err(|error| Error {
        fix: format!("Choose another local port, or 0:{remote} for any free port."),
        ..platform(format!("cannot listen on {address}: {error}"))
    })
}

async fn take(listener: TcpListener, client: Client, sandbox: SandboxId, port: u16, places: Arc<Semaphore>) {
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (client, sandbox) = (client.clone(), sandbox.clone());
        tokio::spawn(async move {
            pass(stream, &client, &sandbox, port).await;
            drop(place);
        });
    }
}

async fn pass(mut stream: TcpStream, client: &Client, sandbox: &SandboxId, port: u16) {
    let _ = stream.set_nodelay(true);
    let passed = match client.tunnel(sandbox, port).await {
        Ok(mut tunnel) => {
            copy_bidirectional_with_sizes(&mut stream, &mut tunnel, COPY_BYTES, COPY_BYTES).await.is_ok()
        }
        Err(error) => {
            show::note(&explain(&error).message);
            false
        }
    };
    if !passed {
        // Reset the connection instead of closing it, so that the client does not mistake the failure for the
        // regular end of the connection.
        let _ = stream.set_zero_linger();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_here_is_the_one_inside_unless_another_is_named() {
        let pair = |text: &str| text.parse::<Pair>().map(|pair| (pair.local, pair.remote));
        assert_eq!(pair("8000"), Ok((8000, 8000)));
        assert_eq!(pair("8080:8000"), Ok((8080, 8000)));
        assert_eq!(pair("0:8000"), Ok((0, 8000)));
        for text in ["", "0", "8000:0", ":8000", "8000:", "1:2:3", "70000"] {
            assert!(pair(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_here_is_mended_without_another_one_inside() {
        let taken = listen(0, 8000).await.unwrap();
        let error = listen(taken.local_addr().unwrap().port(), 8000).await.unwrap_err();
        assert!(error.fix.contains("0:8000"), "{}", error.fix);
    }
}
