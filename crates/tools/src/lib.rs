//! The tool sets that LLMs call: names, descriptions and schemas of the tools, validation of calls, and
//! answers.
//!
//! This crate runs nothing. The component that runs a call ([`control`](../control/index.html), in a session)
//! first validates the call here, and then formats the result here. All texts that a model reads are
//! therefore in this crate, and its tests compare them byte by byte.
//!
//! | module | holds |
//! |---|---|
//! | [`analysis`] | `sandbox_exec`, `sandbox_write_file`, `sandbox_edit_file` |
//! | [`python`] | `execute_python`, `cleanup_sandbox` |
//! | [`interpreter`] | `execute_python_code` |
//! | [`call`] | a call from a model, and errors in its arguments |
//! | [`capture`] | the retained part of a stream for an answer |
//! | [`ran`] | the end of an exec, in the wording that all sets share |
//! | [`mcp`] | the tools over the Model Context Protocol, for any component that runs them |
//! | [`publish`] | the definitions in the formats of LLM APIs, and the instructions of each set |

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
pub use ran::EndedExec;
