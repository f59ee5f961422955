//! The cluster's certificate authority and the identities it signs.
//!
//! Owns `control-plane/pki/`: made at first start, reused ever after. The listener
//! ([`crate::server`]) serves with its serving certificate, the kubeconfig carries its
//! administrator identity, [`crate::join`] has it sign node certificates,
//! [`crate::kubeconfig`] those of users, and [`crate::service_account`] signs tokens with its key. A file that cannot be read is an error,
//! never a reason to make a new CA: every identity in the cluster hangs on it.
//!
//! One file holds a key and its certificate, so that no crash can leave one without the other.

pub(crate) mod member;
mod subject;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _,
    SanType, SerialNumber,
};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::files;

const DAY: Duration = Duration::from_hours(24);
const CA_VALIDITY: Duration = DAY.saturating_mul(3650);
const LEAF_VALIDITY: Duration = DAY.saturating_mul(365);
/// A certificate with less than this to live is made anew at start and at the daily check.
const RENEW_BEFORE: Duration = DAY.saturating_mul(30);
/// Certificates start in the past so that a node whose clock is a little behind accepts them;
/// short-lived ones only by a tenth of their life.
const BACKDATE: Duration = Duration::from_hours(1);

/// Name of the administrator in the kubeconfig.
pub const ADMIN_USER: &str = "kubernetes-admin";
/// The group every authoriser lets pass.
pub const ADMIN_GROUP: &str = "system:masters";

/// Why the PKI could not be opened or a certificate not be issued.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The directory or a file cannot be read or written.
    #[error("access {path}")]
    Access {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A PEM file holds something else than it should.
    #[error(
        "{path} is damaged: {what}; restore it from a backup (making a new one would cut off \
         every node and client)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Key generation or signing failed.
    #[error("sign the certificate of {subject}")]
    Sign {
        /// Common name.
        subject: String,
        /// The library's reason.
        source: rcgen::Error,
    },
    /// The certificate signing request is no PKCS#10 or its signature is wrong.
    #[error("read the certificate signing request")]
    SigningRequest(#[source] rcgen::Error),
    /// The groups could not be written into a certificate.
    #[error("name {subject} and its groups in a certificate")]
    Subject {
        /// Common name.
        subject: String,
        /// Why.
        source: subject::SubjectError,
    },
    /// A certificate made just now cannot be read.
    #[error("read a new certificate")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The TLS library refuses the keys.
    #[error("build the TLS configuration")]
    Tls(#[source] rustls::Error),
    /// The CA cannot be used to verify clients.
    #[error("build the client certificate verifier")]
    ClientVerifier(#[source] rustls::server::VerifierBuilderError),
}

/// What the serving certificate must be valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingNames {
    /// DNS names.
    pub names: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
}

impl ServingNames {
    /// The names of the `kubernetes` Service, this node, the given addresses and what an
    /// operator adds: names or addresses.
    pub fn new(
        cluster_domain: &str,
        node_name: &str,
        addresses: &[IpAddr],
        more: &[String],
    ) -> Self {
        let mut names: Vec<String> = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
        ]
        .map(str::to_owned)
        .to_vec();
        names.push(format!("kubernetes.default.svc.{cluster_domain}"));
        names.push(node_name.to_owned());
        let mut addresses = addresses.to_vec();
        for name in more {
            match name.parse() {
                Ok(address) => addresses.push(address),
                Err(_not_an_address) => names.push(name.clone()),
            }
        }
        names.sort_unstable();
        names.dedup();
        let mut addresses: Vec<IpAddr> = addresses
            .into_iter()
            .filter(|a| !a.is_unspecified())
            .chain([IpAddr::from([127, 0, 0, 1])])
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self { names, addresses }
    }
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// PKCS#8 private key.
    pub key_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// What [`Pki::sign_client`] gives.
#[derive(Clone, Debug)]
pub struct SignedClient {
    /// The certificate.
    pub certificate_pem: String,
    /// SHA-256 of the public key it is for.
    pub key_hash: [u8; 32],
}

/// SHA-256 of a SubjectPublicKeyInfo in DER.
pub(crate) fn key_hash(subject_public_key_info: &[u8]) -> [u8; 32] {
    Sha256::digest(subject_public_key_info).into()
}

/// The cluster CA and what it signed for the control plane itself.
pub struct Pki {
    directory: PathBuf,
    ca_pem: String,
    ca_hash: [u8; 32],
    issuer: Issuer<'static, KeyPair>,
    names: ServingNames,
    serving: Arc<ServingCertificate>,
    admin: Identity,
    service_account_key: KeyPair,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens `directory`, making what is missing, and renews the leaf certificates that are
    /// near their end or, for the serving one, lack a name.
    pub fn open(directory: &Path, names: ServingNames, now: SystemTime) -> Result<Self, PkiError> {
        files::create_private_directory(directory).map_err(|source| PkiError::Access {
            path: directory.to_owned(),
            source,
        })?;
        let ca_path = directory.join("ca.pem");
        let ca = if let Some(ca) = read(&ca_path)? {
            ca
        } else {
            let ca = make_ca(now)?;
            write(&ca_path, &ca)?;
            ca
        };
        let ca_key = KeyPair::from_pem(&ca.key_pem)
            .ok()
            .ok_or(damaged(&ca_path, "the private key is unusable"))?;
        let ca_der = der(&ca_path, &ca.certificate_pem)?;
        check_pair(&ca_path, &ca_der, &ca_key)?;
        let ca_hash = key_hash(&ca_key.subject_public_key_info());
        let issuer = Issuer::from_ca_cert_der(&ca_der, ca_key)
            .ok()
            .ok_or(damaged(&ca_path, "the certificate is no CA"))?;

        let admin_path = directory.join("admin.pem");
        let admin = match read(&admin_path)? {
            Some(admin) if usable(&der(&admin_path, &admin.certificate_pem)?, &ca_der, now) => {
                admin
            }
            _ => {
                let params = client_params(ADMIN_USER, &[ADMIN_GROUP], LEAF_VALIDITY, now);
                let admin = issue(&issuer, &params)?;
                write(&admin_path, &admin)?;
                admin
            }
        };

        let serving_path = directory.join("serving.pem");
        let serving = match read(&serving_path)? {
            Some(serving) if serves(&serving_path, &serving, &ca_der, &names, now)? => serving,
            _ => {
                let serving = issue(&issuer, &serving_params(&names, now)?)?;
                write(&serving_path, &serving)?;
                serving
            }
        };
        let serving = Arc::new(ServingCertificate {
            current: RwLock::new(certified_key(&serving_path, &serving, &ca_der)?),
        });

        let service_account_path = directory.join("service-account.key");
        let service_account_key = if let Some(pem) = read_file(&service_account_path)? {
            KeyPair::from_pem(&pem).ok().ok_or(damaged(
                &service_account_path,
                "the private key is unusable",
            ))?
        } else {
            let key = generate("service accounts")?;
            write_file(&service_account_path, &key.serialize_pem())?;
            key
        };

        Ok(Self {
            directory: directory.to_owned(),
            ca_pem: ca.certificate_pem,
            ca_hash,
            issuer,
            names,
            serving,
            admin,
            service_account_key,
        })
    }

    /// The CA certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The CA's certificate and private key, PEM: what every server of the cluster has.
    pub(crate) fn ca_with_key(&self) -> Result<String, PkiError> {
        let path = self.directory.join("ca.pem");
        read_file(&path)?.ok_or(damaged(&path, "it is gone"))
    }

    /// SHA-256 of the CA's public key: what a join token pins.
    pub fn ca_hash(&self) -> [u8; 32] {
        self.ca_hash
    }

    /// The administrator's client identity.
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// Key that signs service-account tokens.
    pub fn service_account_key(&self) -> &KeyPair {
        &self.service_account_key
    }

    /// Makes the serving certificate anew when it is near its end; connections made from then
    /// on see it.
    pub fn renew_serving(&self, now: SystemTime) -> Result<bool, PkiError> {
        let path = self.directory.join("serving.pem");
        let ca_der = der(&self.directory.join("ca.pem"), &self.ca_pem)?;
        if let Some(serving) = read(&path)?
            && serves(&path, &serving, &ca_der, &self.names, now)?
        {
            return Ok(false);
        }
        let serving = issue(&self.issuer, &serving_params(&self.names, now)?)?;
        write(&path, &serving)?;
        *self.serving.current.write() = certified_key(&path, &serving, &ca_der)?;
        Ok(true)
    }

    /// Signs the key of a PKCS#10 request for a client with this name and these groups,
    /// whatever the request itself asks for, good for `life`.
    pub fn sign_client(
        &self,
        csr_pem: &str,
        common_name: &str,
        organizations: &[&str],
        life: Duration,
        now: SystemTime,
    ) -> Result<SignedClient, PkiError> {
        let mut request =
            CertificateSigningRequestParams::from_pem(csr_pem).map_err(PkiError::SigningRequest)?;
        request.params = client_params(common_name, organizations, life, now);
        let key_hash = key_hash(&request.public_key.subject_public_key_info());
        request
            .signed_by(&self.issuer)
            .map(|certificate| SignedClient {
                certificate_pem: certificate.pem(),
                key_hash,
            })
            .map_err(|source| PkiError::Sign {
                subject: common_name.to_owned(),
                source,
            })
    }

    /// A key and a certificate for a client with this name and these groups, good for `life`.
    pub fn issue_client(
        &self,
        common_name: &str,
        groups: &[&str],
        life: Duration,
        now: SystemTime,
    ) -> Result<Identity, PkiError> {
        let identity = issue(&self.issuer, &client_params(common_name, &[], life, now))?;
        let plain = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes())
            .map_err(PkiError::Pem)?;
        let certificate = subject::replace(&plain, common_name, groups, self.issuer.key())
            .map_err(|source| PkiError::Subject {
                subject: common_name.to_owned(),
                source,
            })?;
        Ok(Identity {
            certificate_pem: pem(&certificate),
            key_pem: identity.key_pem,
        })
    }

    /// TLS for the API's listeners: the serving certificate, client certificates verified
    /// against the CA where one is shown, HTTP/2 preferred.
    pub fn server_tls(&self) -> Result<rustls::ServerConfig, PkiError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(der(&self.directory.join("ca.pem"), &self.ca_pem)?)
            .map_err(PkiError::Tls)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .map_err(PkiError::ClientVerifier)?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(PkiError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.serving) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The serving certificate in use; replaced in place when it is renewed.
#[derive(Debug)]
struct ServingCertificate {
    current: RwLock<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

fn generate(subject: &str) -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|source| PkiError::Sign {
        subject: subject.to_owned(),
        source,
    })
}

fn base_params(common_name: &str, validity: Duration, now: SystemTime) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.not_before = (now - BACKDATE.min(validity / 10)).into();
    params.not_after = (now + validity).into();
    // Positive, and at most 20 octets: RFC 5280, 4.1.2.2.
    params.serial_number = Some(SerialNumber::from(rand::random::<u64>() >> 1));
    params.distinguished_name = name;
    params
}

fn client_params(
    common_name: &str,
    organizations: &[&str],
    life: Duration,
    now: SystemTime,
) -> CertificateParams {
    let mut params = base_params(common_name, life, now);
    for organization in organizations {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *organization);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

fn serving_params(names: &ServingNames, now: SystemTime) -> Result<CertificateParams, PkiError> {
    let mut params = base_params("kube-apiserver", LEAF_VALIDITY, now);
    for name in &names.names {
        let name = name.as_str().try_into().map_err(|source| PkiError::Sign {
            subject: name.clone(),
            source,
        })?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    params
        .subject_alt_names
        .extend(names.addresses.iter().copied().map(SanType::IpAddress));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn make_ca(now: SystemTime) -> Result<Identity, PkiError> {
    let key = generate("the cluster CA")?;
    let mut params = base_params("pintle-cluster-ca", CA_VALIDITY, now);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    let certificate = params.self_signed(&key).map_err(|source| PkiError::Sign {
        subject: "the cluster CA".to_owned(),
        source,
    })?;
    Ok(Identity {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

fn issue(
    issuer: &Issuer<'static, KeyPair>,
    params: &CertificateParams,
) -> Result<Identity, PkiError> {
    let subject = match params.distinguished_name.get(&DnType::CommonName) {
        Some(rcgen::DnValue::Utf8String(name)) => name.clone(),
        _ => String::new(),
    };
    let key = generate(&subject)?;
    let certificate = params
        .signed_by(&key, issuer)
        .map_err(|source| PkiError::Sign { subject, source })?;
    Ok(Identity {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// A certificate as PEM (RFC 7468).
fn pem(certificate: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

/// Whether `certificate` was signed by this CA and has long enough to live.
fn usable(certificate: &CertificateDer<'_>, ca: &CertificateDer<'_>, now: SystemTime) -> bool {
    let (Ok((_, leaf)), Ok((_, ca))) = (
        X509Certificate::from_der(certificate),
        X509Certificate::from_der(ca),
    ) else {
        return false;
    };
    let renew_from = crate::clock::unix_seconds(now + RENEW_BEFORE);
    let not_after = u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0);
    not_after > renew_from && leaf.verify_signature(Some(ca.public_key())).is_ok()
}

fn serves(
    path: &Path,
    serving: &Identity,
    ca: &CertificateDer<'_>,
    names: &ServingNames,
    now: SystemTime,
) -> Result<bool, PkiError> {
    let certificate = der(path, &serving.certificate_pem)?;
    Ok(usable(&certificate, ca, now) && alternative_names(&certificate).as_ref() == Some(names))
}

fn alternative_names(certificate: &CertificateDer<'_>) -> Option<ServingNames> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let extension = certificate.subject_alternative_name().ok()??;
    let (mut names, mut addresses) = (Vec::new(), Vec::new());
    for name in &extension.value.general_names {
        match name {
            GeneralName::DNSName(name) => names.push((*name).to_owned()),
            GeneralName::IPAddress(octets) => addresses.push(match octets.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(*octets).ok()?),
                _ => IpAddr::from(<[u8; 16]>::try_from(*octets).ok()?),
            }),
            _ => return None,
        }
    }
    names.sort_unstable();
    addresses.sort_unstable();
    Some(ServingNames { names, addresses })
}

fn check_pair(path: &Path, ca: &CertificateDer<'_>, key: &KeyPair) -> Result<(), PkiError> {
    let (_, certificate) = X509Certificate::from_der(ca)
        .ok()
        .ok_or(damaged(path, "the certificate cannot be parsed"))?;
    if certificate.public_key().raw == key.subject_public_key_info() {
        Ok(())
    } else {
        Err(damaged(path, "the certificate is not for this private key"))
    }
}

/// The chain holds the CA too: a machine that joins knows it only by its hash.
fn certified_key(
    path: &Path,
    identity: &Identity,
    ca: &CertificateDer<'static>,
) -> Result<Arc<CertifiedKey>, PkiError> {
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
        .ok()
        .ok_or(damaged(path, "the private key is unusable"))?;
    CertifiedKey::from_der(
        vec![der(path, &identity.certificate_pem)?, ca.clone()],
        key,
        &rustls::crypto::aws_lc_rs::default_provider(),
    )
    .map(Arc::new)
    .map_err(PkiError::Tls)
}

fn der(path: &Path, pem: &str) -> Result<CertificateDer<'static>, PkiError> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .ok()
        .ok_or(damaged(path, "it holds no certificate"))
}

fn damaged(path: &Path, what: &'static str) -> PkiError {
    PkiError::Damaged {
        path: path.to_owned(),
        what,
    }
}

fn read_file(path: &Path) -> Result<Option<String>, PkiError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Access {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads a file of one private key and one certificate.
fn read(path: &Path) -> Result<Option<Identity>, PkiError> {
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
    let Some(text) = read_file(path)? else {
        return Ok(None);
    };
    let Some(at) = text.find(CERTIFICATE) else {
        return Err(damaged(path, "it holds no certificate"));
    };
    let (key, certificate) = text.split_at(at);
    if !key.contains("PRIVATE KEY-----") {
        return Err(damaged(path, "it holds no private key"));
    }
    Ok(Some(Identity {
        certificate_pem: certificate.to_owned(),
        key_pem: key.to_owned(),
    }))
}

fn write(path: &Path, identity: &Identity) -> Result<(), PkiError> {
    let mut text = identity.key_pem.clone();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&identity.certificate_pem);
    write_file(path, &text)
}

fn write_file(path: &Path, text: &str) -> Result<(), PkiError> {
    files::write_secret(path, text.as_bytes()).map_err(|source| PkiError::Access {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ServingNames {
        ServingNames::new("cluster.local", "node-a", &[[10, 96, 0, 1].into()], &[])
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_hours(500_000)
    }

    #[test]
    fn a_second_start_reuses_everything() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(&dir.path().join("pki"), names(), now()).unwrap();
        let serving = std::fs::read(dir.path().join("pki/serving.pem")).unwrap();
        let second = Pki::open(&dir.path().join("pki"), names(), now() + DAY).unwrap();
        assert_eq!(first.ca_pem(), second.ca_pem());
        assert_eq!(first.admin().key_pem, second.admin().key_pem);
        assert_eq!(
            first.service_account_key().serialize_pem(),
            second.service_account_key().serialize_pem()
        );
        assert_eq!(
            serving,
            std::fs::read(dir.path().join("pki/serving.pem")).unwrap()
        );
        second.server_tls().unwrap();
    }

    #[test]
    fn new_names_and_a_near_end_renew_the_serving_certificate_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), names(), now()).unwrap();
        let serving = || std::fs::read_to_string(dir.path().join("serving.pem")).unwrap();
        let before = serving();
        let more = ServingNames::new("cluster.local", "node-b", &[], &["api.example".to_owned()]);
        let second = Pki::open(dir.path(), more, now()).unwrap();
        let renamed = serving();
        assert_ne!(before, renamed);
        assert_eq!(first.ca_pem(), second.ca_pem());
        assert!(!second.renew_serving(now()).unwrap());
        assert!(second.renew_serving(now() + DAY * 340).unwrap());
        assert_ne!(renamed, serving());
    }

    #[test]
    fn a_damaged_ca_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), names(), now()).unwrap();
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, "rubbish").unwrap();
        let error = Pki::open(dir.path(), names(), now()).unwrap_err();
        assert!(matches!(error, PkiError::Damaged { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"rubbish");
    }

    #[test]
    fn a_client_gets_the_name_it_was_granted_not_the_one_it_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), names(), now()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut asked = CertificateParams::default();
        asked
            .distinguished_name
            .push(DnType::CommonName, "system:admin");
        let csr = asked.serialize_request(&key).unwrap().pem().unwrap();
        let life = LEAF_VALIDITY;
        let signed = pki
            .sign_client(&csr, "system:node:a", &["system:nodes"], life, now())
            .unwrap();
        let der = CertificateDer::from_pem_slice(signed.certificate_pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let subject = certificate.subject();
        let common_name = subject.iter_common_name().next().unwrap().as_str().unwrap();
        let group = subject
            .iter_organization()
            .next()
            .unwrap()
            .as_str()
            .unwrap();
        assert_eq!((common_name, group), ("system:node:a", "system:nodes"));
        assert_eq!(signed.key_hash, key_hash(certificate.public_key().raw));
        assert!(matches!(
            pki.sign_client("nonsense", "x", &[], life, now()),
            Err(PkiError::SigningRequest(_))
        ));
    }

    #[test]
    fn a_user_is_in_every_group_and_lives_as_long_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), names(), now()).unwrap();
        let life = Duration::from_hours(2);
        let user = pki
            .issue_client("jane", &["dev", "ops"], life, now())
            .unwrap();
        let der = CertificateDer::from_pem_slice(user.certificate_pem.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        let groups: Vec<_> = certificate
            .subject()
            .iter_organization()
            .map(|group| group.as_str().unwrap())
            .collect();
        assert_eq!(groups, ["dev", "ops"]);
        let ca = CertificateDer::from_pem_slice(pki.ca_pem().as_bytes()).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca).unwrap();
        certificate.verify_signature(Some(ca.public_key())).unwrap();
        assert_eq!(key_hash(ca.public_key().raw), pki.ca_hash());
        let ends = u64::try_from(certificate.validity().not_after.timestamp()).unwrap();
        assert_eq!(ends, crate::clock::unix_seconds(now() + life));
        let key = KeyPair::from_pem(&user.key_pem).unwrap();
        assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
    }
}
