//! The one executable of Belljar.

fn main() {}
