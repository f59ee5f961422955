//! The node's key and client certificate.
//!
//! Owns `agent/identity/node.pem`: a key that is made here and never leaves the node, the
//! certificate the cluster CA signed for it, and that CA. One file, replaced as a whole, so
//! that no crash leaves a key with another key's certificate. Reacts next: the
//! [`channel`](super::channel), which authenticates with them.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use x509_parser::pem::parse_x509_pem;

/// Why there is no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory cannot be made.
    #[error("cannot create {path}")]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file of the identity cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file of the identity cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The key cannot be made or read.
    #[error("cannot use the node's key")]
    Key(#[source] rcgen::Error),
    /// The signing request cannot be made.
    #[error("cannot make a certificate signing request")]
    Request(#[source] rcgen::Error),
}

/// A key and its certificate, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Private key.
    pub key_pem: String,
    /// Client certificate, `CN=system:node:NAME`.
    pub certificate_pem: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its start.
    pub from: Timestamp,
    /// Its end.
    pub until: Timestamp,
}

impl Validity {
    /// Whether it is good at `now`.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// When the given part of its life is over.
    pub fn part(&self, part: f64) -> Timestamp {
        let life = self.until.duration_since(self.from).as_secs_f64();
        let elapsed = Duration::try_from_secs_f64(life * part).unwrap_or_default();
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or_default();
        self.from.checked_add(elapsed).unwrap_or(self.until)
    }
}

/// The file of the identity.
#[derive(Clone, Debug)]
pub struct IdentityStore {
    directory: PathBuf,
    node_name: String,
    ca_pem: String,
}

impl IdentityStore {
    /// The identity of `node_name` in the cluster of `ca_pem`, kept in `directory`.
    pub fn new(directory: PathBuf, node_name: String, ca_pem: String) -> Self {
        Self {
            directory,
            node_name,
            ca_pem,
        }
    }

    /// The stored identity when it belongs to this node and cluster, and from when to when it
    /// is good.
    pub fn load(&self) -> Result<Option<(Identity, Validity)>, IdentityError> {
        let Some(stored) = stored(&self.directory)? else {
            return Ok(None);
        };
        if stored.ca_pem != self.ca_pem {
            return Ok(None);
        }
        let identity = stored.identity;
        Ok(validity(&identity.certificate_pem, &self.node_name)
            .map(|validity| (identity, validity)))
    }

    /// Keeps an identity, replacing the one before.
    pub fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        create_directory(&self.directory)?;
        let text = [
            with_newline(&identity.key_pem),
            with_newline(&identity.certificate_pem),
            self.ca_pem.clone(),
        ]
        .concat();
        write(&self.directory.join(FILE), text.as_bytes())
    }

    /// Forgets the identity, after the control plane refused it.
    pub fn forget(&self) -> Result<(), IdentityError> {
        let path = self.directory.join(FILE);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(IdentityError::Write { path, source })
            }
            _ => Ok(()),
        }
    }
}

const FILE: &str = "node.pem";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

struct Stored {
    identity: Identity,
    ca_pem: String,
}

/// What the file holds, whoever it is for; a file that is not of this form counts as none.
fn stored(directory: &Path) -> Result<Option<Stored>, IdentityError> {
    let Some(text) = read(&directory.join(FILE))? else {
        return Ok(None);
    };
    let mut starts = text.match_indices(CERTIFICATE).map(|(at, _)| at);
    let (Some(certificate), Some(ca)) = (starts.next(), starts.next()) else {
        return Ok(None);
    };
    let identity = Identity {
        key_pem: text[..certificate].to_owned(),
        certificate_pem: text[certificate..ca].to_owned(),
    };
    if KeyPair::from_pem(&identity.key_pem).is_err() {
        return Ok(None);
    }
    Ok(Some(Stored {
        identity,
        ca_pem: text[ca..].to_owned(),
    }))
}

/// The key of an earlier join, whatever became of its certificate: a machine that joins again
/// with it has its name already.
pub fn stored_key(directory: &Path) -> Result<Option<String>, IdentityError> {
    Ok(stored(directory)?.map(|stored| stored.identity.key_pem))
}

/// A new key.
pub fn new_key() -> Result<String, IdentityError> {
    let key = KeyPair::generate().map_err(IdentityError::Key)?;
    Ok(key.serialize_pem())
}

/// A certificate signing request for a key.
pub fn signing_request(key_pem: &str, node_name: &str) -> Result<String, IdentityError> {
    let key = KeyPair::from_pem(key_pem).map_err(IdentityError::Key)?;
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, format!("system:node:{node_name}"));
    params.distinguished_name = name;
    params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(IdentityError::Request)
}

/// From when to when a certificate is good, if it is this node's.
pub fn validity(certificate_pem: &str, node_name: &str) -> Option<Validity> {
    let (_, pem) = parse_x509_pem(certificate_pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let wanted = format!("system:node:{node_name}");
    let is_ours = certificate
        .subject()
        .iter_common_name()
        .any(|name| name.as_str().is_ok_and(|name| name == wanted));
    if !is_ours {
        return None;
    }
    let (from, until) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    Some(Validity {
        from: Timestamp::from_second(from).ok()?,
        until: Timestamp::from_second(until).ok()?,
    })
}

fn with_newline(text: &str) -> String {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

pub(super) fn create_directory(path: &Path) -> Result<(), IdentityError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| IdentityError::CreateDirectory {
            path: path.to_path_buf(),
            source,
        })
}

pub(super) fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Read {
            path: path.to_path_buf(),
            source,
        }),
    }
}

/// Replaces a file as a whole, durably; readable by its owner only.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
    let failed = |source| IdentityError::Write {
        path: path.to_path_buf(),
        source,
    };
    let temporary = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)?;
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(request_pem: &str, life_days: i64) -> String {
        let now = Timestamp::now().as_second();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ca");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let mut csr = rcgen::CertificateSigningRequestParams::from_pem(request_pem).unwrap();
        let at = |seconds: i64| {
            // rcgen re-exports no clock; a date far enough away will do.
            let stamp = Timestamp::from_second(seconds).unwrap().to_string();
            let year: i32 = stamp[..4].parse().unwrap();
            let month: u8 = stamp[5..7].parse().unwrap();
            let day: u8 = stamp[8..10].parse().unwrap();
            rcgen::date_time_ymd(year, month, day)
        };
        csr.params.not_before = at(now - 86_400);
        csr.params.not_after = at(now + life_days * 86_400);
        csr.signed_by(&issuer).unwrap().pem()
    }

    fn ca(name: &str) -> String {
        format!("{CERTIFICATE}\n{name}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn an_identity_comes_back_for_its_node_and_cluster_only() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("identity");
        let store =
            |node: &str, name: &str| IdentityStore::new(directory.clone(), node.into(), ca(name));
        let ours = store("n1", "a");
        assert!(ours.load().unwrap().is_none());
        assert!(stored_key(&directory).unwrap().is_none());
        let key_pem = new_key().unwrap();
        let request = signing_request(&key_pem, "n1").unwrap();
        let identity = Identity {
            certificate_pem: sign(&request, 300),
            key_pem,
        };
        ours.save(&identity).unwrap();
        let (loaded, validity) = ours.load().unwrap().unwrap();
        assert_eq!(loaded, identity);
        assert!(validity.holds(Timestamp::now()));
        assert!(store("n2", "a").load().unwrap().is_none());
        assert!(store("n1", "b").load().unwrap().is_none());
        assert_eq!(stored_key(&directory).unwrap(), Some(identity.key_pem));
        ours.forget().unwrap();
        ours.forget().unwrap();
        assert!(ours.load().unwrap().is_none());
    }

    #[test]
    fn a_life_has_parts() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let validity = Validity {
            from: at(1_000),
            until: at(2_000),
        };
        assert_eq!(validity.part(0.75), at(1_750));
        assert!(validity.holds(at(1_000)) && validity.holds(at(1_999)));
        assert!(!validity.holds(at(999)) && !validity.holds(at(2_000)));
    }
}
