//! The tool sets that LLMs call: their names, texts and schemas, what a call must look like, and what is answered.
//!
//! Nothing here runs anything: whoever does ([`control`](../control/index.html) in a session) checks a call here first, and has what came
//! of it put into words here. So every text that a model reads is in this crate, and is compared byte for byte by its tests.
//!
//! | module | holds |
//! |---|---|
//! | [`analysis`] | `sandbox_exec`, `sandbox_write_file`, `sandbox_edit_file` |
//! | [`python`] | `execute_python`, `cleanup_sandbox` |
//! | [`interpreter`] | `execute_python_code` |
//! | [`call`] | a call as it comes, and what is wrong with its arguments |
//! | [`capture`] | what is kept of a stream for an answer |
//! | [`ran`] | how an exec ended, in the words that all sets share |
//! | [`mcp`] | the same over the Model Context Protocol, for whoever runs them |
//! | [`publish`] | the definitions in the forms that LLM interfaces take, and the instructions of each set |

#![forbid(unsafe_code)]

pub mod analysis;
pub mod call;
pub mod capture;
pub mod interpreter;
pub mod mcp;
pub mod publish;
pub mod python;
pub mod ran;

pub use call::Call;
pub use capture::Capture;
pub use publish::{Definition, Format, definitions, prompt, published};
pub use ran::Ran;
