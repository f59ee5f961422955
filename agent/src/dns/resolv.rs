//! Which servers the host itself asks.
//!
//! Watches /etc/resolv.conf: it is read again when it has changed. Changes nothing.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

const PORT: u16 = 53;

/// The servers to forward to.
#[derive(Debug)]
pub(super) struct Upstreams {
    source: Option<Source>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// This server's own address, which is never asked.
    own: SocketAddr,
}

#[derive(Debug, Default)]
struct Current {
    servers: Arc<[SocketAddr]>,
    modified: Option<SystemTime>,
}

impl Upstreams {
    /// Always the same servers.
    pub(super) fn fixed(servers: Vec<SocketAddr>) -> Self {
        Self {
            source: None,
            current: Mutex::new(Current {
                servers: servers.into(),
                modified: None,
            }),
        }
    }

    /// The host's servers, without the server at `own`.
    pub(super) fn from_host(own: SocketAddr) -> Self {
        Self::from_file(PathBuf::from("/etc/resolv.conf"), own)
    }

    fn from_file(path: PathBuf, own: SocketAddr) -> Self {
        Self {
            source: Some(Source { path, own }),
            current: Mutex::new(Current::default()),
        }
    }

    /// The servers as of now, best first.
    pub(super) fn servers(&self) -> Arc<[SocketAddr]> {
        let mut current = self.current.lock();
        if let Some(source) = &self.source {
            let modified = std::fs::metadata(&source.path)
                .and_then(|meta| meta.modified())
                .ok();
            if modified.is_none() || modified != current.modified {
                let text = std::fs::read_to_string(&source.path).unwrap_or_default();
                current.servers = parse(&text, source.own).into();
                current.modified = modified;
            }
        }
        current.servers.clone()
    }
}

/// The `nameserver` lines, without the one that would ask this server again.
fn parse(text: &str, own: SocketAddr) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            if words.next() != Some("nameserver") {
                return None;
            }
            let address: IpAddr = words.next()?.split('%').next()?.parse().ok()?;
            Some(SocketAddr::new(address, PORT))
        })
        .filter(|server| *server != own)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameservers_are_read_and_loops_left_out() {
        let own = "10.96.0.10:53".parse().unwrap();
        let text = "# c\nsearch x.y\nnameserver 192.0.2.1\nnameserver 10.96.0.10\n\
                    nameserver\t2001:db8::1\nnameserver fe80::1%eth0\nnameserver nonsense\n";
        let servers = parse(text, own);
        let texts: Vec<_> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1]:53"]);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let own = "10.96.0.10:53".parse().unwrap();
        let upstreams = Upstreams::from_file(path.clone(), own);
        assert_eq!(upstreams.servers().len(), 0, "no file, no servers");
        std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(upstreams.servers().len(), 1);
        std::fs::write(&path, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n").unwrap();
        let later = SystemTime::now() + std::time::Duration::from_mins(1);
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(later)
            .unwrap();
        assert_eq!(upstreams.servers().len(), 2);
    }
}
