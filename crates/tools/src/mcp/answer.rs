//! The form in which a model receives answers and errors.
//!
//! A result is sent both as an object and as text, because some clients show their model only the object and
//! others show only the text.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::{ToolAnswer, resource};

/// Returns the MCP result of a call that produced an answer. `links` states whether to include links to
/// resources, because clients with protocol versions before 2025-06-18 fail on them.
pub(super) fn answered(answer: ToolAnswer, links: bool) -> CallToolResult {
    let result = Value::Object(answer.result);
    let mut content = vec![ContentBlock::text(result.to_string())];
    content.extend(answer.images.into_iter().map(|image| ContentBlock::image(image.base64, image.mime)));
    if links {
        content.extend(answer.artifacts.iter().map(resource::described).map(ContentBlock::resource_link));
    }
    said(content, result, answer.failed)
}

/// Returns the MCP result of a call that failed. It contains the error, its fix, and the error code for
/// programs.
pub(super) fn refused(error: &api::Error) -> CallToolResult {
    let text = format!("{}. {} (error code: {})", error.message, error.fix, error.code.name());
    said(vec![ContentBlock::text(text)], json!({ "error": error }), true)
}

fn said(content: Vec<ContentBlock>, structured: Value, failed: bool) -> CallToolResult {
    let mut result = if failed { CallToolResult::error(content) } else { CallToolResult::success(content) };
    result.structured_content = Some(structured);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::mcp::{AnswerImage, Artifact};

    fn answer() -> ToolAnswer {
        ToolAnswer {
            result: Map::from_iter([("stdout".to_owned(), json!("hi"))]),
            failed: true,
            images: vec![AnswerImage { mime: "image/png".into(), base64: "AAAA".into() }],
            artifacts: vec![Artifact { name: "a b.csv".into(), mime: "text/csv".into(), size_bytes: 3 }],
        }
    }

    #[test]
    fn a_result_is_an_object_and_the_same_text() {
        let shown = serde_json::to_value(answered(answer(), true)).unwrap();
        assert_eq!(shown["structuredContent"], json!({ "stdout": "hi" }));
        assert_eq!(shown["content"][0], json!({ "type": "text", "text": r#"{"stdout":"hi"}"# }));
        assert_eq!(shown["content"][1], json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" }));
        assert_eq!(shown["content"][2]["type"], "resource_link");
        assert_eq!(shown["content"][2]["uri"], "bellglass://artifacts/a%20b.csv");
        assert_eq!(shown["isError"], true);
    }

    #[test]
    fn an_old_client_is_given_no_links() {
        assert_eq!(answered(answer(), false).content.len(), 2);
    }

    #[test]
    fn an_error_says_what_to_do() {
        let error = api::Error::invalid("`code` is missing", "Say the code to run.");
        let shown = serde_json::to_value(refused(&error)).unwrap();
        let text = "`code` is missing. Say the code to run. (error code: invalid_request)";
        assert_eq!(shown["content"][0]["text"], text);
        assert_eq!(shown["structuredContent"]["error"]["code"], "invalid_request");
        assert_eq!(shown["isError"], true);
    }
}
