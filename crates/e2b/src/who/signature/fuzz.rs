//! Fuzz target: signed URLs of files.

use axum::http::Uri;

use super::super::user::check_user;
use super::*;

const ACTS: [FileAct; 2] = [FileAct::Read, FileAct::Write];

/// Returns every request that a signature of this text permits, if the token is `t`. The text has the form
/// `PATH:ACT:USER:TOKEN[:EXPIRATION]`.
fn permitted(text: &str) -> Vec<(String, FileAct, String, Option<String>)> {
    let colons: Vec<usize> = text.match_indices(':').map(|(at, _)| at).collect();
    let mut all = Vec::new();
    for (first, begin) in colons.iter().enumerate() {
        for end in &colons[first + 1..] {
            for act in ACTS {
                let word = if act == FileAct::Read { "read" } else { "write" };
                let Some(rest) = text[*begin + 1..*end].strip_prefix(word) else { continue };
                let user = if rest.is_empty() {
                    let after = &text[*end + 1..];
                    after.find(":t").map(|at| (&after[..at], &after[at + 2..]))
                } else {
                    None
                };
                let Some((user, expiration)) = user else { continue };
                let expiration = match expiration.strip_prefix(':') {
                    Some(until) => Some(until.to_owned()),
                    None if expiration.is_empty() => None,
                    None => continue,
                };
                all.push((text[..*begin].to_owned(), act, user.to_owned(), expiration));
            }
        }
    }
    all
}

#[test]
fn a_signature_permits_one_operation_on_one_file() {
    bolero::check!().with_iterations(1000).for_each(|input: &[u8]| {
        let Ok(query) = std::str::from_utf8(input) else { return };
        let Ok(uri) = format!("/files?{query}").parse::<Uri>() else { return };
        let Ok(Query(signed)) = Query::<Signed>::try_from_uri(&uri) else { return };
        if signed.path.len() > PATH_BYTES_MAX
            || check_user(&signed.username, true).is_err()
            || signed.check_time(0).is_err()
        {
            return;
        }
        for act in ACTS {
            let signature = signed.sign(&signed.begun(act), "t");
            let word = if act == FileAct::Read { "read" } else { "write" };
            let mut text = format!("{}:{word}:{}:t", signed.path, signed.username);
            if let Some(until) = &signed.signature_expiration {
                text.push_str(&format!(":{until}"));
            }
            assert_eq!(signature, format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(&text))));
            let permitted: Vec<_> = permitted(&text)
                .into_iter()
                .filter(|(_, _, user, until)| {
                    check_user(user, true).is_ok()
                        && until.as_ref().is_none_or(|until| until.parse::<u64>().is_ok())
                })
                .collect();
            assert_eq!(permitted.len(), 1, "{permitted:?}");
        }
    });
}
