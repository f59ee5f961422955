//! Knowing a server by the hash of its cluster CA's key.
//!
//! Pure. A machine that joins has no CA yet, only its hash in the token. Servers send their CA
//! at the end of their chain; the handshake goes on only when that CA has the hash, signed the
//! server's certificate, and the certificate is for the name that was dialled. So nothing, the
//! token above all, is ever sent to a server that is not the cluster's.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// What a handshake found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The CA, whose certificate this is.
    Ca(Vec<u8>),
    /// None of the certificates shown has the hash; the hash of the last one, the server's CA.
    Foreign(Option<[u8; 32]>),
    /// The CA is right, but the server's certificate is not for the name that was dialled.
    Name,
    /// The CA is right, but by this machine's clock the certificate has not begun or has ended.
    Clock,
}

/// Verifies a server by the hash of its CA.
#[derive(Debug)]
pub struct PinnedCa {
    hash: [u8; 32],
    provider: Arc<CryptoProvider>,
    finding: Mutex<Option<Finding>>,
}

impl PinnedCa {
    /// Accepts only the CA whose public key has this hash.
    pub fn new(hash: [u8; 32], provider: Arc<CryptoProvider>) -> Self {
        Self {
            hash,
            provider,
            finding: Mutex::new(None),
        }
    }

    /// What the last handshake found; `None` when none came that far.
    pub fn finding(&self) -> Option<Finding> {
        self.finding.lock().clone()
    }

    fn found(&self, finding: Finding) {
        *self.finding.lock() = Some(finding);
    }
}

/// SHA-256 of a certificate's SubjectPublicKeyInfo.
pub fn key_hash(certificate: &[u8]) -> Option<[u8; 32]> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(Sha256::digest(certificate.public_key().raw).into())
}

/// The first certificate of a PEM text, in DER.
pub fn certificate(pem: &str) -> Option<Vec<u8>> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(certificate.to_vec())
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates
            .iter()
            .find(|certificate| key_hash(certificate) == Some(self.hash));
        let Some(ca) = pinned else {
            let last = intermediates.last().and_then(|last| key_hash(last));
            self.found(Finding::Foreign(last));
            return Err(CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&self.provider),
        )
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match &verified {
            Ok(_) => self.found(Finding::Ca(ca.to_vec())),
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => self.found(Finding::Name),
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            )) => self.found(Finding::Clock),
            // Signed by another CA than the one shown: as good as another cluster.
            Err(_) => self.found(Finding::Foreign(None)),
        }
        verified
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        certificate: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn authority() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    fn leaf(authority: &Authority, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        certificate.der().clone()
    }

    fn look(pin: &Authority, chain: &[&CertificateDer<'static>], name: &str) -> Finding {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let pinned = PinnedCa::new(key_hash(&pin.certificate).unwrap(), provider);
        let rest: Vec<_> = chain[1..].iter().map(|c| (*c).clone()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_hours(500_000));
        let verified = pinned.verify_server_cert(chain[0], &rest, &name, &[], now);
        let finding = pinned.finding().unwrap();
        assert_eq!(verified.is_ok(), matches!(finding, Finding::Ca(_)));
        finding
    }

    #[test]
    fn only_the_pinned_ca_is_trusted_and_only_with_its_own_signature() {
        let (ours, theirs) = (authority(), authority());
        let good = leaf(&ours, "api.example");
        let ca = &ours.certificate;
        assert_eq!(
            look(&ours, &[&good, ca], "api.example"),
            Finding::Ca(ca.to_vec())
        );
        assert_eq!(look(&ours, &[&good, ca], "other.example"), Finding::Name);
        assert_eq!(
            look(&theirs, &[&good, ca], "api.example"),
            Finding::Foreign(key_hash(ca))
        );
        // No CA shown, and a foreign server that shows our CA.
        assert_eq!(look(&ours, &[&good], "api.example"), Finding::Foreign(None));
        let forged = leaf(&theirs, "api.example");
        assert_eq!(
            look(&ours, &[&forged, ca], "api.example"),
            Finding::Foreign(None)
        );
    }
}
