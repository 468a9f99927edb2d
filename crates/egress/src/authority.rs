//! A project's certificate authority, which the project's sandboxes trust for hosts that have a secret bound
//! to them.
//!
//! The authority's key stays on the server. Sandboxes have only its certificate, which does not let them sign
//! anything.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Validity period of the authority's certificate, which is longer than the lifetime of any sandbox that
/// trusts it.
const VALID: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Age at which a host's certificate is replaced, and its validity period. The validity period is longer, so
/// that a certificate that is still in use does not expire.
const SIGN_EVERY: Duration = DAY;
const SIGNED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of hosts whose certificates are cached. A policy binds secrets to only a few hosts.
const HOSTS_MAX: usize = 256;
/// Maximum number of characters of the project's name in the certificate's common name, which X.509 limits to
/// 64 characters.
const PROJECT_BYTES_MAX: usize = 40;
/// The only protocol offered in the TLS handshake. The broker inspects each request separately, which HTTP/2
/// would complicate without a security benefit.
const PROTOCOL: &[u8] = b"http/1.1";

/// A certificate authority: its certificate and its key.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    /// The key of all host certificates that this authority signs.
    leaf: KeyPair,
    signed: Mutex<HashMap<String, (Instant, Arc<ServerConfig>)>>,
}

/// Failure to create or open a certificate authority, or to sign a certificate.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act}")]
pub struct Error {
    act: &'static str,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority for a project, and returns its certificate (PEM) and its key (PKCS #8).
    ///
    /// # Errors
    /// Returns an error if the system's random number generator is unavailable.
    pub fn mint(project: &str, now: SystemTime) -> Result<(String, Zeroizing<Vec<u8>>), Error> {
        const ACT: &str = "create a certificate authority";
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed(ACT))?;
        let mut params = params(project);
        params.not_before = (now - DAY).into();
        params.not_after = (now + VALID).into();
        let certificate = params.self_signed(&key).map_err(failed(ACT))?;
        Ok((certificate.pem(), Zeroizing::new(key.serialize_der())))
    }

    /// Opens an authority from its certificate and key.
    ///
    /// # Errors
    /// Returns an error if the key is invalid.
    pub fn open(project: &str, certificate: String, key: &[u8]) -> Result<Self, Error> {
        const ACT: &str = "read the key of a certificate authority";
        let key = PrivatePkcs8KeyDer::from(key);
        let key =
            KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256).map_err(failed(ACT))?;
        let leaf = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed(ACT))?;
        Ok(Self { certificate, issuer: Issuer::new(params(project), key), leaf, signed: Mutex::default() })
    }

    /// Returns the certificate that sandboxes trust, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the TLS configuration for impersonating this host.
    pub(crate) fn in_place_of(&self, host: &str) -> Result<Arc<ServerConfig>, Error> {
        let mut signed = self.signed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, config)) = signed.get(host)
            && at.elapsed() < SIGN_EVERY
        {
            return Ok(Arc::clone(config));
        }
        if signed.len() >= HOSTS_MAX {
            signed.clear();
        }
        let config = Arc::new(self.sign(host)?);
        signed.insert(host.to_owned(), (Instant::now(), Arc::clone(&config)));
        Ok(config)
    }

    fn sign(&self, host: &str) -> Result<ServerConfig, Error> {
        const ACT: &str = "sign a certificate for a host";
        let mut params = CertificateParams::new([host.to_owned()]).map_err(failed(ACT))?;
        let now = SystemTime::now();
        params.not_before = (now - DAY).into();
        params.not_after = (now + SIGNED_FOR).into();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Bellglass");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&self.leaf, &self.issuer).map_err(failed(ACT))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(failed(ACT))?.with_no_client_auth();
        let mut config =
            config.with_single_cert(vec![certificate.der().clone()], key).map_err(failed(ACT))?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(config)
    }
}

/// Returns the parameters of the authority's certificate. They must not change between releases: signed
/// certificates identify their issuer by these parameters, and databases contain authorities that older
/// releases created.
fn params(project: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Bellglass");
    let project: String = project.chars().take(PROJECT_BYTES_MAX).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Sandboxes of {project}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn failed<E: std::error::Error + Send + Sync + 'static>(act: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error { act, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    async fn shakes_hands(trusted: &Authority, signer: &Authority, asked: &'static str) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.certificate().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let accepting = TlsAcceptor::from(signer.in_place_of("a.example").unwrap()).accept(theirs);
        let name = ServerName::try_from(asked).unwrap();
        let (client, server) =
            tokio::join!(TlsConnector::from(Arc::new(client)).connect(name, ours), accepting);
        client.is_ok() && server.is_ok()
    }

    #[tokio::test]
    async fn who_trusts_it_believes_it_for_one_host_and_after_a_restart_too() {
        let (certificate, key) = Authority::mint("p", SystemTime::now()).unwrap();
        let first = Authority::open("p", certificate.clone(), &key).unwrap();
        let second = Authority::open("p", certificate, &key).unwrap();
        assert!(shakes_hands(&first, &first, "a.example").await);
        assert!(shakes_hands(&first, &second, "a.example").await);
        assert!(!shakes_hands(&first, &first, "b.example").await);
        let (certificate, key) = Authority::mint("q", SystemTime::now()).unwrap();
        let other = Authority::open("q", certificate, &key).unwrap();
        assert!(!shakes_hands(&other, &first, "a.example").await);
        assert!(Authority::open("p", String::new(), b"nothing").is_err());
        assert!(!format!("{first:?}").contains("PRIVATE"));
    }
}
