//! The tool sets that LLMs call: the names, descriptions and schemas of the tools, the validation of calls,
//! and the answers.
//!
//! This crate does not run anything. The component that runs a call in a session
//! ([`control`](../control/index.html)) uses this crate first to validate the call, and then to format the
//! result. All texts that a model reads are therefore in this crate, and its tests compare them byte by byte.
//!
//! | module | holds |
//! |---|---|
//! | [`analysis`] | `sandbox_exec`, `sandbox_write_file`, `sandbox_edit_file` |
//! | [`python`] | `execute_python`, `cleanup_sandbox` |
//! | [`interpreter`] | `execute_python_code` |
//! | [`call`] | a call from a model, and errors in its arguments |
//! | [`capture`] | the parts of an output stream that are kept for an answer |
//! | [`ran`] | the end of an exec, in wording that all tool sets share |
//! | [`mcp`] | the tools over the Model Context Protocol, independent of the component that runs them |
//! | [`publish`] | tool definitions in the formats of LLM APIs, and the instructions for each tool set |

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
