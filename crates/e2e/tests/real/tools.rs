//! The tool sets on a real server, in real sandboxes. Every text is compared byte for byte. IDs such as
//! A14.01 refer to `docs/requirements.md`.

mod analysis;
mod interpreter;
mod python;
mod sessions;
