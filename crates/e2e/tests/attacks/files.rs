//! The attacks of `attacks/` on the files of a sandbox: what code plants, and what clients send.
//!
//! | module | attacks |
//! |---|---|
//! | [`names`] | P-01, P-10, P-14: names that lead elsewhere, or into somebody's terminal |
//! | [`planted`] | P-02, P-03, P-04, P-06, P-07, P-08, P-13: what lies where a file is expected |
//! | [`races`] | P-05, P-09, P-17, U-08: what changes while it is looked at |
//! | [`sizes`] | P-11, P-12, P-16: too many, too deep, too large, too often |
//! | [`archives`] | P-15, U-01, U-02, U-03, U-05, U-09: archives that strangers made |
//! | [`kept`] | T-01: what code leaves where a session keeps files |
//! | [`forms`] | U-07: bodies that are forms |
//! | [`ground`] | what all of them stand on |
//!
//! Each has a control that shows what happens to whoever does the same without the defence, in a directory of the test's own.

mod archives;
mod forms;
mod ground;
mod kept;
mod names;
mod planted;
mod races;
mod sizes;
