//! The attacks of `attacks/`, with one module for each part of Bellglass that they attack. Run them with
//! `just attacks`.

mod egress;
mod files;
mod images;
mod sandbox;
mod service;
