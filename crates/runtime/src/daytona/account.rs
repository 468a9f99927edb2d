//! The address and key of a Daytona account, and the errors for an account that cannot be used.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode};

use crate::Error;

/// Environment variable that holds the API's address. Daytona's own programs use the same variable.
pub(super) const ADDRESS: &str = "DAYTONA_API_URL";
/// Environment variable that holds the API key.
const KEY: &str = "DAYTONA_API_KEY";
/// Environment variable that selects a region other than the account's default.
const TARGET: &str = "DAYTONA_TARGET";

/// Timeout for a response. Daytona queries its machines before it responds.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of characters of Daytona's message in an error.
const SAID_CHARS_MAX: usize = 400;

/// A Daytona account. Cheap to clone. The key is never displayed.
#[derive(Clone)]
pub struct Account {
    address: String,
    /// Region for new workspaces, or `None` for the account's default.
    pub(super) target: Option<String>,
    http: reqwest::Client,
}

/// An error response from Daytona.
pub(super) struct ErrorResponse {
    /// The response's HTTP status.
    pub status: StatusCode,
    /// The response's message.
    pub said: String,
}

impl Account {
    /// Returns true if an address or a key is configured, which means that the user intends to use Daytona.
    pub fn is_meant() -> bool {
        variable(ADDRESS).is_some() || variable(KEY).is_some()
    }

    /// Returns the account that is configured in the environment.
    ///
    /// # Errors
    /// Returns an error if no account is configured, or if its address or key is invalid.
    pub fn find() -> Result<Self, Error> {
        let missing = |name: &str| Error::Unavailable {
            what: "Daytona is not configured".into(),
            why: format!("{name} is not set"),
            fix: format!(
                "Set {ADDRESS} to the URL of Daytona's API (https://app.daytona.io/api for the hosted service) and {KEY} to a key of your account."
            ),
        };
        let address = variable(ADDRESS).ok_or_else(|| missing(ADDRESS))?;
        let key = variable(KEY).ok_or_else(|| missing(KEY))?;
        Self::new(&address, &key, variable(TARGET))
    }

    /// Creates an account with this address and key. `target` is the region for new workspaces, or `None` for
    /// the account's default.
    ///
    /// # Errors
    /// Returns an error if the address or the key is invalid.
    pub fn new(address: &str, key: &str, target: Option<String>) -> Result<Self, Error> {
        let wrong = |name: &str, why: String| Error::Unavailable {
            what: "Daytona cannot be used".into(),
            why: format!("{name} {why}"),
            fix: format!("Correct {name}. Your Daytona account shows the URL and the keys."),
        };
        reqwest::Url::parse(address)
            .map_err(|error| wrong(ADDRESS, format!("is not a valid URL: {error}")))?;
        if !is_private(address) {
            return Err(wrong(ADDRESS, "does not use https, so the key would be sent unencrypted".into()));
        }
        let mut bearer = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| wrong(KEY, "contains characters that are not valid in a key".into()))?;
        bearer.set_sensitive(true);
        let client = crate::http::client();
        let http = client
            .map_err(|error| wrong("the certificates of this machine", error.to_string()))?
            .default_headers(HeaderMap::from_iter([(AUTHORIZATION, bearer)]))
            .build()
            .map_err(|error| wrong(ADDRESS, error.to_string()))?;
        Ok(Self { address: address.trim_end_matches('/').to_owned(), target, http })
    }

    /// Returns the address of Daytona's API.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Creates a request to Daytona's API.
    pub(super) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.at(method, &format!("{}{path}", self.address))
    }

    /// Creates a request to this URL, such as the URL of a workspace's agent.
    pub(super) fn at(&self, method: Method, url: &str) -> RequestBuilder {
        self.http.request(method, url)
    }

    /// Sends a request, and returns the response or the error response. `longer` is added to the usual
    /// timeout.
    pub(super) async fn send(
        &self,
        act: &str,
        request: RequestBuilder,
        longer: Duration,
    ) -> Result<Result<Response, ErrorResponse>, Error> {
        let within = ANSWER_WITHIN + longer;
        let response = match tokio::time::timeout(within, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.silent(&crate::chain(&error.without_url()))),
            Err(_) => return Err(self.silent(&format!("Daytona did not {act} within {within:?}"))),
        };
        let status = response.status();
        if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Ok(response));
        }
        let said = tokio::time::timeout(ANSWER_WITHIN, response.text()).await;
        let said = words(&said.ok().and_then(Result::ok).unwrap_or_default());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Error::Unavailable {
                what: "Daytona rejected the key".into(),
                why: format!("it returned {}: {said}", status.as_u16()),
                fix: format!(
                    "Create a key at {} that may create sandboxes, and set {KEY} to this key.",
                    self.address
                ),
            }),
            _ => Ok(Err(ErrorResponse { status, said })),
        }
    }

    /// Sends a request, and converts an error response to an error.
    pub(super) async fn done(
        &self,
        act: &str,
        request: RequestBuilder,
        longer: Duration,
    ) -> Result<Response, Error> {
        self.send(act, request, longer).await?.map_err(|refusal| self.failed(act, &refusal))
    }

    /// Reads and parses a response, with a timeout.
    pub(super) async fn read<T: serde::de::DeserializeOwned>(
        &self,
        act: &str,
        response: Response,
    ) -> Result<T, Error> {
        let body = match tokio::time::timeout(ANSWER_WITHIN, response.bytes()).await {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => return Err(self.silent(&crate::chain(&error.without_url()))),
            Err(_) => {
                return Err(self.silent(&format!("the response was incomplete after {ANSWER_WITHIN:?}")));
            }
        };
        serde_json::from_slice(&body).map_err(|error| Error::Unavailable {
            what: format!("Daytona failed to {act}"),
            why: format!("its response cannot be parsed: {error}"),
            fix: format!("Check that {ADDRESS} is the URL of Daytona's API."),
        })
    }

    /// Builds the error for an operation that Daytona refused.
    pub(super) fn failed(&self, act: &str, refusal: &ErrorResponse) -> Error {
        Error::Unavailable {
            what: format!("Daytona failed to {act}"),
            why: format!("it returned {}: {}", refusal.status.as_u16(), refusal.said),
            fix: "Fix the reported cause, then check with `bellglass doctor`.".into(),
        }
    }

    /// Builds the error that is returned when Daytona does not respond.
    fn silent(&self, why: &str) -> Error {
        Error::Unavailable {
            what: "Daytona cannot be reached".into(),
            why: format!("{}: {why}", self.address),
            fix: format!("Check {ADDRESS} and the network path to this address."),
        }
    }
}

/// Returns true if requests to this URL are encrypted or do not leave this machine.
pub(super) fn is_private(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    let inside = url.host_str().is_some_and(|host| ["127.0.0.1", "localhost", "[::1]"].contains(&host));
    url.scheme() == "https" || url.scheme() == "http" && inside
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Returns the message in the body of an error response, which is either JSON with a message or arbitrary
/// text.
fn words(body: &str) -> String {
    let found = serde_json::from_str::<serde_json::Value>(body).ok();
    let message = found.as_ref().and_then(|found| {
        ["message", "error"].iter().find_map(|name| found.get(name)?.as_str().map(str::to_owned))
    });
    message.unwrap_or_else(|| body.trim().to_owned()).chars().take(SAID_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_sent_where_everybody_can_read_it() {
        for (address, fine) in [
            ("https://app.daytona.io/api", true),
            ("http://127.0.0.1:3000/api", true),
            ("http://daytona.example.org/api", false),
            ("http://127.0.0.1.example.org/api", false),
            ("daytona", false),
        ] {
            assert_eq!(Account::new(address, "dtn_x", None).is_ok(), fine, "{address}");
        }
        assert!(Account::new("https://app.daytona.io/api", "a\nb", None).is_err());
    }

    #[test]
    fn what_is_told_on_is_what_somebody_wrote_for_people() {
        assert_eq!(
            words("{\"statusCode\":404,\"message\":\"Snapshot x not found\"}"),
            "Snapshot x not found"
        );
        assert_eq!(words("{\"error\":\"no\"}"), "no");
        assert_eq!(words("<html>"), "<html>");
        assert_eq!(words(&"a".repeat(4000)).len(), SAID_CHARS_MAX);
    }
}
