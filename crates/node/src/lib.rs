//! One machine.
