//! The log against a real file.
