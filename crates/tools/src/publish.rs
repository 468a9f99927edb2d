//! The definitions of tools in the forms that LLM interfaces take, and the instructions of each set.

use api::Error;
use api::limits::Limits;
use api::session::{TIMEOUT_SECONDS, ToolSet};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{analysis, interpreter, python};

/// One tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it does, for a model.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
    /// What it is for.
    pub category: Category,
}

/// What a tool is for (requirement A6.18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Runs something.
    CodeExecution,
    /// Changes files.
    FileManagement,
}

/// What descriptions say of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How long a run may take.
    pub timeout_seconds: u64,
    /// How much memory it has.
    pub memory_bytes: u64,
}

/// The form in which tools are published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Our own, with categories.
    #[default]
    Bellglass,
    /// The `tools` of OpenAI's chat completions.
    Openai,
    /// The `tools` of Anthropic's messages.
    Anthropic,
    /// The tools of the Model Context Protocol.
    Mcp,
}

impl Default for Facts {
    fn default() -> Self {
        Self { timeout_seconds: TIMEOUT_SECONDS, memory_bytes: Limits::default().memory_bytes }
    }
}

/// The tools of a set.
pub fn definitions(set: ToolSet, facts: &Facts) -> Vec<Definition> {
    match set {
        ToolSet::Analysis => analysis::definitions(),
        ToolSet::Python => python::definitions(),
        ToolSet::Interpreter => interpreter::definitions(facts),
    }
}

/// The tools of a set in this form.
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

/// The instructions of a set, for the system prompt of a model.
pub fn prompt(set: ToolSet) -> &'static str {
    match set {
        ToolSet::Analysis => analysis::PROMPT,
        ToolSet::Python => python::PROMPT,
        ToolSet::Interpreter => interpreter::PROMPT,
    }
}

/// The error for a tool that a set does not have.
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
        // Requirement A8.01.
        let tools = published(ToolSet::Interpreter, &Facts::default(), Format::Openai);
        assert_eq!(tools[0]["type"], "function");
        assert_eq!(tools[0]["function"]["name"], "execute_python_code");
    }
}
