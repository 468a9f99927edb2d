//! Tool definitions in the formats of LLM APIs, and the instructions for each tool set.

use api::Error;
use api::limits::Limits;
use api::session::{TIMEOUT_SECONDS, ToolSet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{analysis, interpreter, python};

/// Definition of a tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Definition {
    /// Name of the tool.
    pub name: &'static str,
    /// Description of the tool, for the model.
    pub description: String,
    /// JSON Schema of the tool's arguments.
    pub parameters: Value,
    /// Category of the tool.
    pub category: Category,
}

/// Category of a tool (requirement A6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Execution of code or commands.
    CodeExecution,
    /// Changes to files.
    FileManagement,
}

/// Limits that the tool descriptions state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Timeout of a run in seconds.
    pub timeout_seconds: u64,
    /// Memory limit of a run in bytes.
    pub memory_bytes: u64,
}

/// Format in which tools are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Bellglass's own format, with categories.
    #[default]
    Bellglass,
    /// `tools` in OpenAI's Chat Completions API.
    Openai,
    /// `tools` in Anthropic's Messages API.
    Anthropic,
    /// Tools in the Model Context Protocol.
    Mcp,
}

impl Default for Facts {
    fn default() -> Self {
        Self { timeout_seconds: TIMEOUT_SECONDS, memory_bytes: Limits::default().memory_bytes }
    }
}

/// Returns the definitions of the tools in a set.
pub fn definitions(set: ToolSet, facts: &Facts) -> Vec<Definition> {
    match set {
        ToolSet::Analysis => analysis::definitions(),
        ToolSet::Python => python::definitions(),
        ToolSet::Interpreter => interpreter::definitions(facts),
    }
}

/// Returns the definitions of the tools in a set, in the given format.
pub fn published(set: ToolSet, facts: &Facts, format: Format) -> Vec<Value> {
    let in_form = |tool: Definition| match format {
        Format::Bellglass => json!(tool),
        Format::Openai => json!({
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        }),
        Format::Anthropic => {
            json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters})
        }
        Format::Mcp => {
            json!({"name": tool.name, "description": tool.description, "inputSchema": tool.parameters})
        }
    };
    definitions(set, facts).into_iter().map(in_form).collect()
}

/// Returns the instructions for a tool set, for the system prompt of a model.
pub fn prompt(set: ToolSet) -> &'static str {
    match set {
        ToolSet::Analysis => analysis::PROMPT,
        ToolSet::Python => python::PROMPT,
        ToolSet::Interpreter => interpreter::PROMPT,
    }
}

/// Returns the error for a tool name that the set does not contain.
pub fn no_tool(set: ToolSet, name: &str) -> Error {
    let shown: String = name.chars().take(100).collect();
    let names: Vec<_> = definitions(set, &Facts::default()).iter().map(|tool| tool.name).collect();
    Error {
        fix: format!("Call one of {}.", names.join(", ")),
        ..Error::not_found(format!("there is no tool {shown:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_every_tool_with_a_schema() {
        for set in ToolSet::ALL {
            let own = definitions(set, &Facts::default());
            for (format, at) in [
                (Format::Openai, "/function/parameters"),
                (Format::Anthropic, "/input_schema"),
                (Format::Mcp, "/inputSchema"),
                (Format::Bellglass, "/parameters"),
            ] {
                let tools = published(set, &Facts::default(), format);
                assert_eq!(tools.len(), own.len());
                for (tool, own) in tools.iter().zip(&own) {
                    assert_eq!(tool.pointer(at), Some(&own.parameters), "{set:?} {format:?}");
                }
            }
            assert!(prompt(set).starts_with("## "));
        }
        // Covers requirement A8.01.
        let tools = published(ToolSet::Interpreter, &Facts::default(), Format::Openai);
        assert_eq!(tools[0]["type"], "function");
        assert_eq!(tools[0]["function"]["name"], "execute_python_code");
    }
}
