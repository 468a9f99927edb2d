//! The attacks of `attacks/` on the files of a sandbox: files that code plants, and files that clients send.
//!
//! | module | attacks |
//! |---|---|
//! | [`names`] | P-01, P-10, P-14: names that lead elsewhere, or that affect a terminal |
//! | [`planted`] | P-02, P-03, P-04, P-06, P-07, P-08, P-13: links, devices and unreadable files where a file is expected |
//! | [`races`] | P-05, P-09, P-17, U-08: changes during an operation |
//! | [`sizes`] | P-11, P-12, P-16, U-06: too many files, too deep trees, too large files, too frequent events |
//! | [`archives`] | P-15, U-01, U-02, U-03, U-05, U-09: untrusted archives |
//! | [`kept`] | T-01: hostile files in a session's folder |
//! | [`forms`] | U-07: bodies that are forms |
//! | [`ground`] | setup that all of them share |
//!
//! Each attack has a control, which runs in a separate directory and shows how the attack affects a program
//! without the defence.

mod archives;
mod forms;
mod ground;
mod kept;
mod names;
mod planted;
mod races;
mod sizes;
