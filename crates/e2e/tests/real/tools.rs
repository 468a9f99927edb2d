//! The tool sets on a real server, in real sandboxes. Every text is compared byte for byte; numbers are those of the requirements.

mod analysis;
mod interpreter;
mod python;
mod sessions;
