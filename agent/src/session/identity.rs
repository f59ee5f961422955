//! The node's key and client certificate.
//!
//! Owns `agent/identity/`: a key that is made here and never leaves the node, the
//! certificate the cluster CA signed for it, and the CA it belongs to. Reacts next: the
//! [`channel`](super::channel), which authenticates with them.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
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

/// A key, its certificate, and the CA that signed it, as PEM.
#[derive(Clone)]
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

/// The files of the identity.
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

    /// The stored identity, when it belongs to this node and cluster and has at least a fifth
    /// of its life left at `now`.
    pub fn load(&self, now: Timestamp) -> Result<Option<Identity>, IdentityError> {
        let Some(key_pem) = read(&self.directory.join("node.key"))? else {
            return Ok(None);
        };
        let Some(certificate_pem) = read(&self.directory.join("node.crt"))? else {
            return Ok(None);
        };
        let Some(ca_pem) = read(&self.directory.join("ca.crt"))? else {
            return Ok(None);
        };
        if ca_pem != self.ca_pem
            || KeyPair::from_pem(&key_pem).is_err()
            || !usable(&certificate_pem, &self.node_name, now)
        {
            return Ok(None);
        }
        Ok(Some(Identity {
            key_pem,
            certificate_pem,
        }))
    }

    /// The node's key (made at the first call) and a signing request for it.
    pub fn request(&self) -> Result<(String, String), IdentityError> {
        std::fs::create_dir_all(&self.directory).map_err(|source| {
            IdentityError::CreateDirectory {
                path: self.directory.clone(),
                source,
            }
        })?;
        let path = self.directory.join("node.key");
        let stored = read(&path)?.and_then(|pem| KeyPair::from_pem(&pem).ok());
        let key = if let Some(key) = stored {
            key
        } else {
            let key = KeyPair::generate().map_err(IdentityError::Key)?;
            write(&path, key.serialize_pem().as_bytes())?;
            key
        };
        let mut params = CertificateParams::default();
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(
            DnType::CommonName,
            format!("system:node:{}", self.node_name),
        );
        params.distinguished_name = name;
        let request = params
            .serialize_request(&key)
            .and_then(|request| request.pem())
            .map_err(IdentityError::Request)?;
        Ok((key.serialize_pem(), request))
    }

    /// Keeps what the control plane signed.
    pub fn save(&self, identity: &Identity) -> Result<(), IdentityError> {
        write(
            &self.directory.join("node.crt"),
            identity.certificate_pem.as_bytes(),
        )?;
        write(&self.directory.join("ca.crt"), self.ca_pem.as_bytes())
    }

    /// Forgets the certificate (the key stays), after the control plane refused it.
    pub fn forget(&self) -> Result<(), IdentityError> {
        let path = self.directory.join("node.crt");
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(IdentityError::Write { path, source })
            }
            _ => Ok(()),
        }
    }
}

fn usable(certificate_pem: &str, node_name: &str, now: Timestamp) -> bool {
    let Ok((_, pem)) = parse_x509_pem(certificate_pem.as_bytes()) else {
        return false;
    };
    let Ok(certificate) = pem.parse_x509() else {
        return false;
    };
    let wanted = format!("system:node:{node_name}");
    let named = certificate
        .subject()
        .iter_common_name()
        .any(|name| name.as_str().is_ok_and(|name| name == wanted));
    let (from, until) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    let renew_at = from + (until - from) / 5 * 4;
    named && now.as_second() >= from && now.as_second() < renew_at
}

fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(IdentityError::Read {
            path: path.to_path_buf(),
            source,
        }),
    }
}

fn write(path: &Path, content: &[u8]) -> Result<(), IdentityError> {
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
    std::fs::rename(&temporary, path).map_err(failed)
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

    #[test]
    fn key_is_kept_and_identity_reused() {
        let dir = tempfile::tempdir().unwrap();
        let store = IdentityStore::new(dir.path().join("identity"), "n1".into(), "CA".into());
        assert!(store.load(Timestamp::now()).unwrap().is_none());
        let (key, request) = store.request().unwrap();
        assert_eq!(store.request().unwrap().0, key);
        store
            .save(&Identity {
                key_pem: key.clone(),
                certificate_pem: sign(&request, 300),
            })
            .unwrap();
        assert_eq!(store.load(Timestamp::now()).unwrap().unwrap().key_pem, key);
        let other = IdentityStore::new(dir.path().join("identity"), "n2".into(), "CA".into());
        assert!(other.load(Timestamp::now()).unwrap().is_none());
        let other = IdentityStore::new(dir.path().join("identity"), "n1".into(), "CB".into());
        assert!(other.load(Timestamp::now()).unwrap().is_none());
        store.forget().unwrap();
        assert!(store.load(Timestamp::now()).unwrap().is_none());
    }

    #[test]
    fn certificate_near_its_end_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = IdentityStore::new(dir.path().into(), "n1".into(), "CA".into());
        let (key_pem, request) = store.request().unwrap();
        store
            .save(&Identity {
                key_pem,
                certificate_pem: sign(&request, 10),
            })
            .unwrap();
        let later = Timestamp::now() + k8s_openapi::jiff::SignedDuration::from_hours(9 * 24);
        assert!(store.load(later).unwrap().is_none());
    }
}
