//! Runs of code in real sandboxes: output, results, package installation, leftovers and ends. IDs such as
//! A3.05 refer to `docs/requirements.md`.

mod charts;
mod ends;
mod languages;
mod outages;
mod packages;
mod pictures;
mod processes;
mod runs;
