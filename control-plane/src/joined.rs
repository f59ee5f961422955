//! What a server that joined others remembers of it.
//!
//! Owns `control-plane/joined.json` and, at the moment of joining, the whole folder around it:
//! that one appears by a single rename with the cluster's keys and the place in the group, so a
//! crash leaves a server that has joined or a machine that has not, never one that would begin a
//! second cluster with the first one's CA. Read at every start: the group and what the cluster
//! decided for all its servers come from it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use pintle_proto::node::JoinServerResponse;
use serde::{Deserialize, Serialize};

use crate::config::{Cidr, CidrParseError, Joins};
use crate::files;

/// The control plane's folder below the data directory.
const STATE: &str = "control-plane";
/// Where that is put together.
const UNFINISHED: &str = "control-plane.joining";
const FILE: &str = "joined.json";

/// The cluster a server joined, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    /// HOST:PORT of the server it joined through.
    pub joined_at: String,
    /// The cluster.
    pub cluster_id: String,
    /// The member of the store's group that this server is.
    pub member_id: u64,
    /// Domain of the cluster's DNS names.
    pub cluster_domain: String,
    /// Addresses of all Services.
    #[serde(with = "text")]
    pub service_cidr: Cidr,
    /// Addresses of all pods.
    #[serde(with = "text")]
    pub pod_cidr: Cidr,
}

/// Why it cannot be used or kept.
#[derive(Debug, thiserror::Error)]
pub enum JoinedError {
    /// A file or folder cannot be read or written.
    #[error("access {path}", path = path.display())]
    Access {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{path} is damaged; restore it from a backup, or `pintle reset` and join again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The server that was asked answered with something that makes no sense.
    #[error("the cluster's {what} is {value:?}; is that server of another version?")]
    Answer {
        /// What is wrong.
        what: &'static str,
        /// As it came.
        value: String,
        /// Why.
        source: CidrParseError,
    },
    /// The server that was asked left something out.
    #[error("the server's answer lacks {0}; is it of another version?")]
    Lacks(&'static str),
}

impl Joined {
    /// What the data directory says; `None` for a server that began its cluster, or none yet.
    pub fn load(data_dir: &Path) -> Result<Option<Self>, JoinedError> {
        let path = data_dir.join(STATE).join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(JoinedError::Access { path, source }),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| JoinedError::Damaged { path, source })
    }

    /// Whether the data directory holds a control plane, joined or not.
    pub fn is_server(data_dir: &Path) -> bool {
        data_dir.join(STATE).exists()
    }

    /// Keeps what the cluster answered, all of it or nothing.
    pub fn keep(
        joined_at: &str,
        answer: &JoinServerResponse,
        data_dir: &Path,
    ) -> Result<Self, JoinedError> {
        let settings = answer
            .settings
            .as_ref()
            .ok_or(JoinedError::Lacks("the cluster's settings"))?;
        let range = |what, value: &str| -> Result<Cidr, JoinedError> {
            value.parse().map_err(|source| JoinedError::Answer {
                what,
                value: value.to_owned(),
                source,
            })
        };
        if answer.ca_pem.is_empty() || answer.service_account_key_pem.is_empty() {
            return Err(JoinedError::Lacks("the cluster's keys"));
        }
        let joined = Self {
            joined_at: joined_at.to_owned(),
            cluster_id: settings.cluster_id.clone(),
            member_id: answer.member_id,
            cluster_domain: settings.cluster_domain.clone(),
            service_cidr: range("Service range", &settings.service_cidr)?,
            pod_cidr: range("pod range", &settings.pod_cidr)?,
        };
        joined.write(answer, data_dir)?;
        Ok(joined)
    }

    /// As the store is told of it.
    pub fn joins(&self) -> Joins {
        Joins {
            cluster_id: self.cluster_id.clone(),
            member_id: self.member_id,
        }
    }

    fn write(&self, answer: &JoinServerResponse, data_dir: &Path) -> Result<(), JoinedError> {
        let unfinished = data_dir.join(UNFINISHED);
        let access = |path: &Path| {
            let path = path.to_owned();
            move |source| JoinedError::Access { path, source }
        };
        match std::fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(access(&unfinished)(error));
            }
            _ => {}
        }
        let keys = unfinished.join("pki");
        files::create_private_directory(&unfinished).map_err(access(&unfinished))?;
        files::create_private_directory(&keys).map_err(access(&keys))?;
        let text = serde_json::to_vec_pretty(self).map_err(|source| JoinedError::Damaged {
            path: unfinished.join(FILE),
            source,
        })?;
        for (path, contents) in [
            (keys.join("ca.pem"), answer.ca_pem.as_bytes()),
            (
                keys.join("service-account.key"),
                answer.service_account_key_pem.as_bytes(),
            ),
            (unfinished.join(FILE), &text),
        ] {
            files::write_secret(&path, contents).map_err(access(&path))?;
        }
        let state = data_dir.join(STATE);
        std::fs::rename(&unfinished, &state)
            .and_then(|()| File::open(data_dir)?.sync_all())
            .map_err(access(&state))
    }
}

mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::config::Cidr;

    pub(super) fn serialize<S: Serializer>(cidr: &Cidr, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(cidr)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Cidr, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use pintle_proto::node::ClusterSettings;

    use super::*;

    fn answer() -> JoinServerResponse {
        JoinServerResponse {
            member_id: 7,
            ca_pem: "ca".to_owned(),
            service_account_key_pem: "key".to_owned(),
            settings: Some(ClusterSettings {
                cluster_id: "c".to_owned(),
                cluster_domain: "cluster.local".to_owned(),
                service_cidr: "10.96.0.0/16".to_owned(),
                pod_cidr: "10.244.0.0/16".to_owned(),
                ..ClusterSettings::default()
            }),
        }
    }

    #[test]
    fn what_was_joined_comes_back_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Joined::load(dir.path()).unwrap(), None);
        // Of an earlier attempt that was interrupted.
        std::fs::create_dir_all(dir.path().join(UNFINISHED).join("pki/ca.pem")).unwrap();
        let kept = Joined::keep("192.0.2.1:6443", &answer(), dir.path()).unwrap();
        assert_eq!(Joined::load(dir.path()).unwrap(), Some(kept.clone()));
        assert_eq!(kept.joins().member_id, 7);
        assert!(!dir.path().join(UNFINISHED).exists());
        let ca = std::fs::read(dir.path().join("control-plane/pki/ca.pem")).unwrap();
        assert_eq!(ca, b"ca");
    }

    #[test]
    fn an_answer_that_lacks_something_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut bare = answer();
        bare.settings = None;
        let mut odd = answer();
        odd.settings.as_mut().unwrap().pod_cidr = "all".to_owned();
        let mut keyless = answer();
        keyless.ca_pem.clear();
        for answer in [bare, odd, keyless] {
            Joined::keep("s:1", &answer, dir.path()).unwrap_err();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
