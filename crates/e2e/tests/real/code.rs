//! Runs of code in real sandboxes: output, results, package installation, leftovers and ends. Ids such as
//! A3.05 are those of `docs/requirements.md`.

mod charts;
mod ends;
mod languages;
mod outages;
mod packages;
mod pictures;
mod processes;
mod runs;
