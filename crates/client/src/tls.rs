//! Certificates that the client trusts: the operating system's, or only those in a given file.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;

use crate::error::Error;

/// Returns the client's TLS configuration. If the server's address does not use TLS, no certificates are
/// loaded, so that the client also works on a machine that has none.
pub(crate) fn config(encrypted: bool, ca_file: Option<&Path>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let system = |error: rustls::Error| Error::Configuration {
        what: "the system certificates".into(),
        why: error.to_string(),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(system)?;
    let builder = match ca_file {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None if encrypted => builder.with_platform_verifier().map_err(system)?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let wrong =
        |why: String| Error::Configuration { what: format!("the certificates in {}", path.display()), why };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        store.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(wrong("the file contains no certificates".into()));
    }
    Ok(store)
}
