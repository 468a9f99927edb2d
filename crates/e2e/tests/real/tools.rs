//! The tool sets on a real server, in real sandboxes. Every text is compared byte for byte; ids such as
//! A14.01 are those of `docs/requirements.md`.

mod analysis;
mod interpreter;
mod python;
mod sessions;
