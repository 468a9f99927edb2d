//! Runs of code in real sandboxes: what they write, show, install and leave, and how they end. Ids such as A3.05 are
//! those of `docs/requirements.md`.

mod charts;
mod ends;
mod languages;
mod outages;
mod packages;
mod pictures;
mod processes;
mod runs;
