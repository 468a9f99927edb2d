//! Ports in sandboxes, reached through a real server. The application in the sandbox is the test's own.
//! Clients are curl, raw sockets, `bellglass forward` and a browser.
//!
//! | module | holds |
//! |---|---|
//! | [`http`] | requests and responses, addressed by host name and by headers, with HTTP/1.1 and HTTP/2 |
//! | [`streams`] | WebSocket, events, large bodies, tunnels |
//! | [`ends`] | disconnects and deaths of clients, applications and servers |
//! | [`browser`] | a page in Chromium |
//! | [`ground`] | the setup that all of them share |

mod browser;
mod ends;
pub(crate) mod ground;
mod http;
mod streams;
