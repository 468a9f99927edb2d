//! Ports inside sandboxes, reached through a real server: an application the test brings along, asked by curl, by raw sockets,
//! by `bellglass forward` and by a browser.
//!
//! | module | holds |
//! |---|---|
//! | [`http`] | what an application is asked and what it answers, by name and by headers, with HTTP/1.1 and HTTP/2 |
//! | [`streams`] | WebSocket, events, large bodies, tunnels |
//! | [`ends`] | whoever goes away: clients, applications, servers |
//! | [`browser`] | a page in Chromium |
//! | [`ground`] | what all of them stand on |

mod browser;
mod ends;
pub(crate) mod ground;
mod http;
mod streams;
