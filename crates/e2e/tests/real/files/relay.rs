//! A TCP relay in front of a server, which cuts a connection on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Relay that forwards TCP connections. It cuts one of them once all of them together have carried a given
/// number of bytes.
pub struct Relay {
    pub url: String,
    budget: Arc<AtomicI64>,
}

impl Relay {
    pub async fn to(server: &str) -> Self {
        let server: SocketAddr = server.trim_start_matches("http://").parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let relay = Self { url, budget: Arc::new(AtomicI64::new(i64::MAX)) };
        let budget = Arc::clone(&relay.budget);
        tokio::spawn(async move {
            while let Ok((ours, _)) = listener.accept().await {
                let budget = Arc::clone(&budget);
                tokio::spawn(async move {
                    let Ok(theirs) = TcpStream::connect(server).await else { return };
                    let ((our_read, our_write), (their_read, their_write)) =
                        (ours.into_split(), theirs.into_split());
                    tokio::select! {
                        () = pass(our_read, their_write, &budget) => {}
                        () = pass(their_read, our_write, &budget) => {}
                    }
                });
            }
        });
        relay
    }

    /// Cuts one connection after this number of further bytes: the connection that transfers the next byte.
    pub fn cut_after(&self, bytes: u64) {
        self.budget.store(i64::try_from(bytes).unwrap(), Ordering::Relaxed);
    }

    /// Returns true once the requested cut has happened.
    pub fn has_cut(&self) -> bool {
        self.budget.load(Ordering::Relaxed) < 0
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, budget: &AtomicI64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let before = budget.fetch_sub(count as i64, Ordering::Relaxed);
        // Cut only the connection whose data is the first to exceed the budget.
        if before >= 0 && before < count as i64 {
            let _ = to.write_all(&buffer[..before as usize]).await;
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
