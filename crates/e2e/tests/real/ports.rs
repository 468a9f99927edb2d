//! Ports inside sandboxes, reached through a real server: an application that the test provides, accessed with
//! curl, raw sockets, `bellglass forward` and a browser.
//!
//! | module | holds |
//! |---|---|
//! | [`http`] | requests and responses, by name and by headers, with HTTP/1.1 and HTTP/2 |
//! | [`streams`] | WebSocket, events, large bodies, tunnels |
//! | [`ends`] | disconnects and deaths of clients, applications and servers |
//! | [`browser`] | a page in Chromium |
//! | [`ground`] | the setup that all of them share |

mod browser;
mod ends;
pub(crate) mod ground;
mod http;
mod streams;
