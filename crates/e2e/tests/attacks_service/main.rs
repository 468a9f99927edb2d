//! The attacks of `attacks/` on the service: a real `belljar serve`, asked by whoever can reach its port.
//!
//! | module | attacks |
//! |---|---|
//! | [`defaults`] | D: what is there unless somebody says otherwise |
//! | [`wire`] | H-01, H-02, H-05: connections that are slow, silent, many, or never read |
//! | [`bodies`] | H-03, H-04, H-06: bodies that are large, wrong or too early |
//! | [`keys`] | H-07, H-08, X-01: guessed keys, repeated requests, other people's ids |
//! | [`description`] | H-09: everything the description of the API allows, and more |
//! | [`e2b`] | H-20: the API of E2B without the right to it |
//! | [`e2b_builds`] | H-21: templates built through it |
//! | [`workstation`] | A-21: root of a workstation wants more than its sandbox |
//! | [`execs`] | A-14, A-16: floods of execs, input that nobody reads |
//! | [`output`] | O-01, O-02, O-04: output without end, without readers, a byte at a time |
//! | [`framing`] | O-05, O-09: bytes that are no text, text that imitates what stands around it |
//! | [`display`] | O-08: text that acts on whoever shows it |
//! | [`clocks`] | A-18: clocks that jump |
//! | [`ports`] | N-16, N-17: ports without their token, a hostile page behind an address |
//! | [`races`] | L-01, L-02, X-08: killed servers, the same name at once, quotas |
//! | [`store`] | L-04: a store that is locked, damaged, gone |
//! | [`machine`] | L-05, L-06: no descriptors, two servers |
//! | [`ground`] | what all of them stand on: raw requests, payloads, memory, a bystander |
//!
//! Each has a control that shows the attack arriving where its defence stops it. Exhaustion is tried under limits only.

// A test fails by panicking, and what it prints is the table of results.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod bodies;
mod clocks;
mod defaults;
mod description;
mod display;
mod e2b;
mod e2b_builds;
mod execs;
mod framing;
mod ground;
mod keys;
mod machine;
mod output;
mod ports;
mod races;
mod store;
mod wire;
mod workstation;
