//! Certificate authorities that programs in the sandbox trust: the authorities of the template, and the
//! authority of the project if a policy binds a secret.
//!
//! Process 1 writes all of them into one file, which user code can read but cannot change.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use api::secret::TRUST_FILE;
use api::{Error, ErrorCode, Layer, Ran, Retry};

/// Possible paths of a template's trusted authorities: Debian's path first, then those of other
/// distributions.
const OF_TEMPLATE: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Maximum size of the template's file. Debian's file has a quarter of a megabyte.
const OF_TEMPLATE_BYTES_MAX: u64 = 4 << 20;
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Makes programs trust this authority, in addition to the template's authorities.
///
/// # Errors
/// `authority` contains no certificate, or the file cannot be written.
pub fn put(authority: &[u8]) -> Result<(), Error> {
    let own = certificates(authority);
    if own.is_empty() {
        return Err(Error::invalid("the body contains no certificate", "Send a certificate as PEM."));
    }
    let text = of_template() + &own;
    // Usually, the file is already up to date.
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
    // Set the mode regardless of the umask.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    fs::rename(&fresh, path)?;
    // Other users may enter the directory, but not list it. This discloses nothing, because the directory
    // belongs to the guest and all other files in it are unnamed.
    path.parent().map_or(Ok(()), |directory| fs::set_permissions(directory, Permissions::from_mode(0o711)))
}

fn of_template() -> String {
    OF_TEMPLATE.iter().find_map(|path| read(Path::new(path)).ok()).unwrap_or_default()
}

/// Reads the certificates in a file of the template. The path is untrusted: it may be a pipe, an endless
/// file, or a link to a file that must not be disclosed.
fn read(path: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(OF_TEMPLATE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(certificates(&bytes))
}

/// Extracts the certificates from a file's content, and drops all other text.
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
