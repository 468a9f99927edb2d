//! Queries that contain file paths. A path consists of arbitrary bytes and reaches the sandbox unchanged.

use std::str::FromStr;

use api::Error;
use api::files::{FilePath, Hashing};
use api::layer::Compression;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::rejection::{Answer, Rejection};

/// Maximum number of query parameters. No route has this many.
const PARAMETERS_MAX: usize = 8;

/// A request's query before decoding. A handler takes its parameters and then calls [`FilesQuery::end`].
pub struct FilesQuery(Vec<(String, String)>);

/// Parameter of every file route: the user of the operation, which [`FilesQuery::end`] takes.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FileUserQuery {
    /// `0` to use the rights of root of the sandbox, if its project allows root. Default: the sandbox's user
    pub uid: Option<u32>,
}

/// Parameter of the routes for one path, which [`FilesQuery::path`] takes.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FilePathQuery {
    /// Percent-encoded path, absolute or relative to `/workspace`
    pub path: String,
}

/// User with whose permissions a file operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesOf {
    /// The sandbox's user.
    User,
    /// Root in the sandbox's own user namespace.
    Root,
}

impl<S: Sync> FromRequestParts<S> for FilesQuery {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default())?)
    }
}

impl FilesQuery {
    fn parse(text: &str) -> Result<Self, Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = pairs.iter().any(|(other, _)| other == name);
            if known || pairs.len() == PARAMETERS_MAX {
                return Err(wrong(&format!("the query repeats {name:?} or has too many parameters")));
            }
            // Form encoding represents a space as `+` and a plus sign as `%2B`.
            pairs.push((name.to_owned(), value.replace('+', "%20")));
        }
        Ok(Self(pairs))
    }

    /// Takes a required path from the query.
    pub fn path(&mut self, name: &str) -> Answer<FilePath> {
        let Some(text) = self.take(name) else {
            return Err(Error::invalid(
                format!("the query has no {name:?}"),
                format!("Add ?{name}= with a percent-encoded path, absolute or relative to /workspace."),
            )
            .into());
        };
        Ok(FilePath::decode(&text)?)
    }

    /// Takes an optional number from the query.
    pub fn number<T: FromStr>(&mut self, name: &str) -> Answer<Option<T>> {
        let parsed = self.take(name).map(|text| text.parse()).transpose();
        Ok(parsed.map_err(|_| wrong(&format!("{name} is not a valid number")))?)
    }

    /// Takes optional permissions, written as octal digits, from the query.
    pub fn mode(&mut self, name: &str) -> Answer<Option<u32>> {
        let parsed = self.take(name).map(|text| u32::from_str_radix(&text, 8)).transpose();
        Ok(parsed.map_err(|_| wrong(&format!("{name} is not an octal number such as 0644")))?)
    }

    /// Takes a flag from the query. The default is false.
    pub fn flag(&mut self, name: &str) -> Answer<bool> {
        match self.take(name).as_deref() {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(_) => Err(wrong(&format!("{name} must be true or false")).into()),
        }
    }

    /// Takes an archive's compression from the query. The default is no compression.
    pub fn compression(&mut self) -> Answer<Compression> {
        let Some(name) = self.take("compression") else { return Ok(Compression::None) };
        let known = Compression::from_name(&name);
        Ok(known.ok_or_else(|| wrong("unknown compression; use none, gzip or zstd"))?)
    }

    /// Takes the kind of digest from the query. The default is SHA-256.
    pub fn digest(&mut self) -> Answer<Hashing> {
        let Some(name) = self.take("digest") else { return Ok(Hashing::default()) };
        let known = Hashing::from_name(&name);
        Ok(known.ok_or_else(|| wrong("unknown digest; use sha256 or blake3"))?)
    }

    /// Takes the optional cursor of a page from the query.
    pub fn cursor(&mut self) -> Answer<Option<FilePath>> {
        let Some(text) = self.take("cursor") else { return Ok(None) };
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| FilePath::new(bytes).ok());
        let known = bytes.ok_or_else(|| {
            Error::invalid(
                "the cursor is invalid",
                "Use `next` of the previous page unchanged, or omit the cursor.",
            )
        })?;
        Ok(Some(known))
    }

    /// Takes the operation's user, and rejects the query if any parameters have not been taken.
    pub fn end(mut self) -> Answer<FilesOf> {
        let files = match self.take("uid").as_deref() {
            None => FilesOf::User,
            Some("0") => FilesOf::Root,
            Some(_) => return Err(wrong("uid must be 0 or omitted").into()),
        };
        match self.0.first() {
            None => Ok(files),
            Some((name, _)) => Err(wrong(&format!("the query has the unknown parameter {name:?}")).into()),
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }
}

/// Returns the cursor of the page that begins after this path. It contains no characters that need escaping.
pub fn cursor(after: &FilePath) -> String {
    URL_SAFE_NO_PAD.encode(after.as_bytes())
}

fn wrong(message: &str) -> Error {
    Error::invalid(message, "Correct the query. The API description lists its parameters.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> FilesQuery {
        FilesQuery::parse(text).unwrap()
    }

    #[test]
    fn paths_reach_the_sandbox_byte_for_byte() {
        for (text, bytes) in [
            ("path=a%2Fb", &b"a/b"[..]),
            ("path=%FF%FE", &b"\xff\xfe"[..]),
            ("path=a+b%2Bc", &b"a b+c"[..]),
            ("path=-rf&x=1", &b"-rf"[..]),
            ("path=a=b", &b"a=b"[..]),
        ] {
            assert_eq!(query(text).path("path").unwrap().as_bytes(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_and_not_left_out() {
        assert!(FilesQuery::parse("path=a&path=b").is_err());
        assert!(query("").path("path").is_err() && query("path=..").path("path").is_err());
        assert!(query("all=maybe").flag("all").is_err() && query("mode=9").mode("mode").is_err());
        assert!(query("digest=md5").digest().is_err() && query("digest=").digest().is_err());
        assert!(query("offset=-1").number::<u64>("offset").is_err());
        assert!(query("other=1").end().is_err());
    }

    #[test]
    fn a_cursor_survives_every_way_to_write_a_query() {
        let path = FilePath::new(&b"/workspace/\xff +%&="[..]).unwrap();
        let text = cursor(&path);
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        assert_eq!(query(&format!("cursor={text}")).cursor().unwrap(), Some(path));
        assert!(query("cursor=!").cursor().is_err());
    }
}
