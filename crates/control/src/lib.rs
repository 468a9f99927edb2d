//! The platform: who may ask for what, what has been asked for, and what became of it.
//!
//! | module | is |
//! |---|---|
//! | [`store`] | accounts and the history of sandboxes, in one SQLite file |
//! | [`audit`] | who did what, in a file that only grows |

pub mod audit;
pub mod store;
