//! The WebSocket of a terminal: one connection to the server.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::{Sink, Stream};
use reqwest::Upgraded;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::client::Client;
use crate::link::{ApiRequest, FailedAttempt};

/// Maximum size of an incoming message: four times the size of the largest message that servers send.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

pub(super) type TerminalSocket = WebSocketStream<Upgraded>;

/// Connects to the terminal that the request names.
pub(super) async fn connect(client: Client, ask: ApiRequest) -> Result<TerminalSocket, FailedAttempt> {
    let upgraded = client.link.socket(&ask).await?;
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX))
        .write_buffer_size(0);
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

/// Sends messages and receives the next message. Calls `outgoing` for the next message to send only if the
/// server has opened the terminal and the connection has room.
pub(super) fn exchange(
    mut socket: Pin<&mut TerminalSocket>,
    context: &mut Context<'_>,
    opened: bool,
    mut outgoing: impl FnMut() -> Option<Message>,
) -> Poll<Result<Message, Error>> {
    while opened && socket.as_mut().poll_ready(context)?.is_ready() {
        let Some(next) = outgoing() else { break };
        socket.as_mut().start_send(next)?;
    }
    // The flush may remain incomplete; the next poll continues it.
    let _ = socket.as_mut().poll_flush(context)?;
    match socket.poll_next(context) {
        Poll::Ready(Some(message)) => Poll::Ready(message),
        Poll::Ready(None) => Poll::Ready(Err(Error::ConnectionClosed)),
        Poll::Pending => Poll::Pending,
    }
}
