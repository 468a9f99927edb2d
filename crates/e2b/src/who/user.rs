//! The user that a request names.

use api::limits::USER;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::connect::{Called, Code, Failed};

/// Returns the user name from a `Basic` authorization header. Clients send no password in this header.
pub(super) fn user(headers: &HeaderMap) -> String {
    let basic = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let text = basic.and_then(|basic| STANDARD.decode(basic.trim()).ok());
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    text.split(':').next().unwrap_or_default().to_owned()
}

/// Checks that the user exists. Root exists only if the sandbox was created with root access.
pub(super) fn check_user(name: &str, rooted: bool) -> Called<()> {
    match name {
        "" | "user" | USER => Ok(()),
        "root" if rooted => Ok(()),
        "root" => Err(Failed::of(
            Code::PermissionDenied,
            "root is not available here: use `user`, install packages with pip or npm as that user, and do steps that need root in a \
             template (docs/guides/e2b.md). If an administrator allows root (`bellglass project set NAME --root true`), commands can run \
             and files can be opened as root in new sandboxes",
        )),
        other => {
            let told: String = other.chars().take(32).collect();
            Err(Failed::of(
                Code::Unauthenticated,
                format!("there is no user {told:?} in this sandbox; use `user`"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_refused_with_what_to_do_instead() {
        let of = |text: &str| HeaderMap::from_iter([(AUTHORIZATION, text.parse().unwrap())]);
        assert_eq!(user(&HeaderMap::new()), "");
        // The header values encode the credentials `user:` and `root:`.
        assert!(check_user(&user(&of("Basic dXNlcjo=")), false).is_ok());
        assert!(check_user(&user(&of("Basic cm9vdDo=")), true).is_ok());
        let Err(Failed::Refused(code, told)) = check_user(&user(&of("Basic cm9vdDo=")), false) else {
            panic!()
        };
        assert!(code == Code::PermissionDenied && told.contains("template"), "{told}");
    }
}
