//! Certificates of the store's members, for their connections to each other.
//!
//! Watches nothing; makes a certificate in memory at start and, when the control plane asks for
//! renewal, before it ends. It is signed by the cluster's CA and carries the one DNS name that
//! only members have, so that no node's or user's certificate passes for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use pintle_store::MEMBER_NAME;
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use super::{LEAF_VALIDITY, Pki, PkiError, base_params, certified_key, der, issue};

/// The certificate in use by both sides; replaced in place.
#[derive(Debug)]
pub(crate) struct MemberCertificate {
    current: RwLock<Arc<CertifiedKey>>,
    ends: RwLock<SystemTime>,
}

impl ResolvesServerCert for MemberCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

impl ResolvesClientCert for MemberCertificate {
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// TLS of one member, towards those that connect and those it connects to.
#[derive(Debug)]
pub(crate) struct MemberTls {
    pub(crate) server: rustls::ServerConfig,
    pub(crate) client: rustls::ClientConfig,
    /// To be renewed with [`Pki::renew_member`].
    pub(crate) certificate: Arc<MemberCertificate>,
}

impl Pki {
    /// Makes a certificate for this member, and TLS with it.
    pub(crate) fn member_tls(&self, now: SystemTime) -> Result<MemberTls, PkiError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(der(&self.directory.join("ca.pem"), &self.ca_pem)?)
            .map_err(PkiError::Tls)?;
        let roots = Arc::new(roots);
        let certificate = Arc::new(MemberCertificate {
            current: RwLock::new(self.issue_member(now)?),
            ends: RwLock::new(now + LEAF_VALIDITY),
        });
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(PkiError::ClientVerifier)?;
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&certificate) as Arc<dyn ResolvesServerCert>);
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&certificate) as Arc<dyn ResolvesClientCert>);
        Ok(MemberTls {
            server,
            client,
            certificate,
        })
    }

    /// Makes the certificate anew in its last quarter.
    pub(crate) fn renew_member(
        &self,
        certificate: &MemberCertificate,
        now: SystemTime,
    ) -> Result<(), PkiError> {
        let left = certificate
            .ends
            .read()
            .duration_since(now)
            .unwrap_or(Duration::ZERO);
        if left < LEAF_VALIDITY / 4 {
            *certificate.current.write() = self.issue_member(now)?;
            *certificate.ends.write() = now + LEAF_VALIDITY;
        }
        Ok(())
    }

    fn issue_member(&self, now: SystemTime) -> Result<Arc<CertifiedKey>, PkiError> {
        let mut params = base_params("pintle-store-member", LEAF_VALIDITY, now);
        let name = MEMBER_NAME.try_into().map_err(|source| PkiError::Sign {
            subject: MEMBER_NAME.to_owned(),
            source,
        })?;
        params.subject_alt_names.push(SanType::DnsName(name));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let identity = issue(&self.issuer, &params)?;
        let ca = self.directory.join("ca.pem");
        certified_key(&ca, &identity, &der(&ca, &self.ca_pem)?)
    }
}
