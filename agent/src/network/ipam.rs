//! Which pod has which address.
//!
//! Owns one file per pod, `<dir>/<uid>`, which holds its address; written whole by rename
//! before the address is used, so a crash leaves either a lease or none. Nothing is synced to
//! disk: after a power failure no pod is left, and a file that came out empty is no lease.
//! Addresses are handed out in a circle, so one that was given back rests as long as possible
//! before another pod gets it.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::cidr::Cidr;

/// Addresses never given to pods: the network and the gateway at the start, the broadcast
/// address at the end.
const RESERVED: u64 = 2;

/// A lease that cannot be given, kept or given back.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// Every address is taken.
    #[error("no free pod address in {0}; hint: remove pods from this node")]
    Exhausted(Cidr),
    /// The uid cannot be a file name.
    #[error("`{0}` is no pod uid")]
    Uid(String),
    /// The directory of the leases cannot be used.
    #[error("cannot use the directory of address leases {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A lease cannot be written.
    #[error("cannot write the address lease {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A lease cannot be removed.
    #[error("cannot remove the address lease {path}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The leases of one node.
#[derive(Debug)]
pub(super) struct Ipam {
    directory: PathBuf,
    cidr: Cidr,
    leases: BTreeMap<String, Ipv4Addr>,
    taken: HashSet<Ipv4Addr>,
    /// Index in the range after which the search starts.
    last: u64,
}

impl Ipam {
    /// Reads the leases that are there.
    pub(super) fn open(directory: &Path, cidr: Cidr) -> Result<Self, IpamError> {
        let error = |source| IpamError::Directory {
            path: directory.to_owned(),
            source,
        };
        std::fs::create_dir_all(directory).map_err(error)?;
        let mut ipam = Self {
            directory: directory.to_owned(),
            cidr,
            leases: BTreeMap::new(),
            taken: HashSet::new(),
            last: RESERVED - 1,
        };
        let mut newest = SystemTime::UNIX_EPOCH;
        for entry in std::fs::read_dir(directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let address = std::fs::read_to_string(entry.path())
                .ok()
                .and_then(|text| text.trim().parse::<Ipv4Addr>().ok())
                .filter(|address| is_uid(&name) && !ipam.taken.contains(address));
            let Some(address) = address else {
                tracing::warn!(lease = %entry.path().display(), "removing what is no address lease");
                remove_file(&entry.path())?;
                continue;
            };
            ipam.taken.insert(address);
            ipam.leases.insert(name, address);
            let written = entry.metadata().and_then(|meta| meta.modified());
            if let (Ok(written), Some(index)) = (written, cidr.index_of(address))
                && written >= newest
            {
                newest = written;
                ipam.last = index;
            }
        }
        Ok(ipam)
    }

    /// The pod's address: the one it has, else a free one. A lease outside the range, left
    /// from before the node got another one, is replaced.
    pub(super) fn lease(&mut self, uid: &str) -> Result<Ipv4Addr, IpamError> {
        if let Some(address) = self.leases.get(uid).copied() {
            if self.cidr.contains(address) {
                return Ok(address);
            }
            self.release(uid)?;
        }
        if !is_uid(uid) {
            return Err(IpamError::Uid(uid.to_owned()));
        }
        let (index, address) = self.free().ok_or(IpamError::Exhausted(self.cidr))?;
        self.write(uid, address)?;
        self.last = index;
        self.taken.insert(address);
        self.leases.insert(uid.to_owned(), address);
        Ok(address)
    }

    /// The address of a pod that has one.
    pub(super) fn get(&self, uid: &str) -> Option<Ipv4Addr> {
        self.leases.get(uid).copied()
    }

    /// Gives the pod's address back.
    pub(super) fn release(&mut self, uid: &str) -> Result<(), IpamError> {
        let Some(address) = self.leases.get(uid).copied() else {
            return Ok(());
        };
        remove_file(&self.directory.join(uid))?;
        self.leases.remove(uid);
        self.taken.remove(&address);
        Ok(())
    }

    /// All leases by uid.
    pub(super) fn leases(&self) -> impl Iterator<Item = (&String, &Ipv4Addr)> {
        self.leases.iter()
    }

    fn free(&self) -> Option<(u64, Ipv4Addr)> {
        let end = self.cidr.size().checked_sub(1)?;
        let count = end.checked_sub(RESERVED)?;
        (1..=count)
            .map(|step| {
                let position = (self.last.max(RESERVED - 1) - (RESERVED - 1) + step - 1) % count;
                RESERVED + position
            })
            .filter_map(|index| Some((index, self.cidr.nth(index)?)))
            .find(|(_, address)| !self.taken.contains(address))
    }

    fn write(&self, uid: &str, address: Ipv4Addr) -> Result<(), IpamError> {
        let path = self.directory.join(uid);
        let partial = self.directory.join(format!(".{uid}"));
        std::fs::write(&partial, format!("{address}\n"))
            .and_then(|()| std::fs::rename(&partial, &path))
            .map_err(|source| IpamError::Write { path, source })
    }
}

fn remove_file(path: &Path) -> Result<(), IpamError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(IpamError::Remove {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// Whether the text can be a file of its own here.
fn is_uid(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn the_same_pod_keeps_its_address_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(dir.path(), cidr("10.244.0.0/24")).unwrap();
        let first = ipam.lease("a").unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 0, 2));
        assert_eq!(ipam.lease("b").unwrap(), Ipv4Addr::new(10, 244, 0, 3));
        assert_eq!(ipam.lease("a").unwrap(), first);
        let mut ipam = Ipam::open(dir.path(), cidr("10.244.0.0/24")).unwrap();
        assert_eq!(ipam.lease("a").unwrap(), first);
        assert_eq!(ipam.get("b"), Some(Ipv4Addr::new(10, 244, 0, 3)));
    }

    #[test]
    fn a_freed_address_rests_until_the_circle_comes_round() {
        let dir = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(dir.path(), cidr("10.244.0.0/29")).unwrap();
        let first = ipam.lease("0").unwrap();
        ipam.release("0").unwrap();
        let mut order = vec![first];
        for uid in 1..6 {
            let address = ipam.lease(&uid.to_string()).unwrap();
            ipam.release(&uid.to_string()).unwrap();
            order.push(address);
        }
        assert_eq!(order.first(), order.last());
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), 5);
    }

    #[test]
    fn torn_and_foreign_files_are_no_leases() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("empty"), "").unwrap();
        std::fs::write(dir.path().join(".partial"), "10.244.0.9\n").unwrap();
        std::fs::write(dir.path().join("one"), "10.244.0.7\n").unwrap();
        let mut ipam = Ipam::open(dir.path(), cidr("10.244.0.0/24")).unwrap();
        assert_eq!(ipam.leases().count(), 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(ipam.lease("two").unwrap(), Ipv4Addr::new(10, 244, 0, 8));
        assert!(matches!(ipam.lease("../x"), Err(IpamError::Uid(_))));
    }

    #[test]
    fn a_full_range_says_so_and_a_new_range_moves_pods() {
        let dir = tempfile::tempdir().unwrap();
        let mut ipam = Ipam::open(dir.path(), cidr("10.244.0.0/30")).unwrap();
        ipam.lease("a").unwrap();
        assert!(matches!(ipam.lease("b"), Err(IpamError::Exhausted(_))));
        let mut ipam = Ipam::open(dir.path(), cidr("10.245.0.0/30")).unwrap();
        assert_eq!(ipam.lease("a").unwrap(), Ipv4Addr::new(10, 245, 0, 2));
        for tiny in ["10.0.0.0/31", "10.0.0.0/32"] {
            let dir = tempfile::tempdir().unwrap();
            let mut ipam = Ipam::open(dir.path(), cidr(tiny)).unwrap();
            assert!(matches!(ipam.lease("a"), Err(IpamError::Exhausted(_))));
        }
    }

    proptest! {
        /// Whatever is leased, released and reopened in whatever order: no address is given
        /// twice, reserved ones never, and a pod keeps its address until it gives it back.
        #[test]
        fn addresses_are_never_shared(
            steps in prop::collection::vec((0_u8..12, 0_u8..4), 1..80),
        ) {
            let range = cidr("10.244.3.0/28");
            let dir = tempfile::tempdir().unwrap();
            let mut ipam = Ipam::open(dir.path(), range).unwrap();
            let mut model: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
            for (pod, action) in steps {
                let uid = format!("pod-{pod}");
                match action {
                    0 => { ipam.release(&uid).unwrap(); model.remove(&uid); }
                    1 => ipam = Ipam::open(dir.path(), range).unwrap(),
                    _ => {
                        let address = ipam.lease(&uid).unwrap();
                        prop_assert!(model.get(&uid).is_none_or(|old| *old == address));
                        model.insert(uid, address);
                    }
                }
                let unique: HashSet<_> = model.values().collect();
                prop_assert_eq!(unique.len(), model.len());
                for address in model.values() {
                    let index = range.index_of(*address).unwrap();
                    prop_assert!((2..15).contains(&index));
                }
                prop_assert_eq!(ipam.leases().count(), model.len());
            }
        }
    }
}
