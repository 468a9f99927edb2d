//! Whom programs inside are told to trust: the authorities of the template, and the one of the project where a policy binds a secret.
//!
//! They are written together into one file of process 1's own, which user code can read and cannot change.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use api::secret::TRUST_FILE;
use api::{Error, ErrorCode, Layer, Ran, Retry};

/// Where templates have the authorities that they trust: Debian's place, then those of others.
const OF_TEMPLATE: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Debian's are a quarter of a megabyte.
const OF_TEMPLATE_BYTES_MAX: u64 = 4 << 20;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Has programs trust this authority too.
///
/// # Errors
/// It is none, or there is no room for the file.
pub fn put(authority: &[u8]) -> Result<(), Error> {
    let own = certificates(authority);
    if own.is_empty() {
        return Err(Error::invalid("the body contains no certificate", "Send a certificate as PEM."));
    }
    let text = of_template() + &own;
    // There already: most execs find it so.
    if fs::read(TRUST_FILE).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    write(Path::new(TRUST_FILE), &text).map_err(|error| Error {
        code: ErrorCode::Capacity,
        message: format!("cannot write the certificate file: {error}"),
        layer: Layer::Sandbox,
        ran: Ran::No,
        retry: Retry::Safe,
        fix: "Remove some files in the sandbox, because the certificate file needs a free inode.".into(),
    })
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o644).open(&fresh)?;
    // Whatever the mask.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    fs::rename(&fresh, path)?;
    // The directory is the guest's alone, and its other files have no names: others may pass, and not look.
    path.parent().map_or(Ok(()), |directory| fs::set_permissions(directory, Permissions::from_mode(0o711)))
}

fn of_template() -> String {
    OF_TEMPLATE.iter().find_map(|path| read(Path::new(path)).ok()).unwrap_or_default()
}

/// The certificates in a file of the template, which is not trusted to be one: it may be a pipe, have no end, or be a link to something
/// that is nobody's business.
fn read(path: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(OF_TEMPLATE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(certificates(&bytes))
}

/// The certificates in a text, and nothing else of it.
fn certificates(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut found = String::new();
    let mut one: Option<String> = None;
    for line in text.lines().map(str::trim_end) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        match (line, &mut one) {
            (BEGIN, _) => one = Some(format!("{BEGIN}\n")),
            (END, Some(_)) => {
                found += &one.take().unwrap_or_default();
                found += END;
                found.push('\n');
            }
            (line, Some(body)) if line.bytes().all(plain) => {
                *body += line;
                body.push('\n');
            }
            (_, Some(_)) => one = None,
            (_, None) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certificates_are_taken() {
        let good = format!("{BEGIN}\nAAAA\nBB==\n{END}\n");
        let text = format!(
            "# a comment\n{good}-----BEGIN OTHER-----\nCC\n-----END OTHER-----\n{BEGIN}\nroot:x:0\n{END}\n{good}"
        );
        assert_eq!(certificates(text.as_bytes()), good.repeat(2));
        assert_eq!(certificates(b""), "");
        assert_eq!(certificates(format!("{BEGIN}\nAAAA").as_bytes()), "");
        assert!(read(Path::new("/dev/zero")).is_err());
    }
}
