//! Where the etcd API is served: `--etcd-listen`.
//!
//! Watches and changes nothing.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address, and whether connections are encrypted. Its text is a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EtcdListen {
    /// Where to listen.
    pub address: SocketAddr,
    /// Without TLS, and so without a client certificate: on a loopback address only.
    pub plain: bool,
}

/// Why the text names no place to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdListenError {
    /// Not an address and a port.
    #[error("not ADDR:PORT such as 127.0.0.1:2379, https://ADDR:PORT or http://127.0.0.1:PORT")]
    Form,
    /// Whoever reaches the port could read and write everything.
    #[error("without TLS only a loopback address can be served; use https://")]
    PlainOutside,
}

impl FromStr for EtcdListen {
    type Err = EtcdListenError;

    fn from_str(text: &str) -> Result<Self, EtcdListenError> {
        let (plain, rest) = match text.split_once("://") {
            Some(("http", rest)) => (true, rest),
            Some(("https", rest)) => (false, rest),
            Some(_) => return Err(EtcdListenError::Form),
            None => (false, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let address: SocketAddr = rest.parse().ok().ok_or(EtcdListenError::Form)?;
        if plain && !address.ip().is_loopback() {
            return Err(EtcdListenError::PlainOutside);
        }
        Ok(Self { address, plain })
    }
}

impl TryFrom<String> for EtcdListen {
    type Error = EtcdListenError;

    fn try_from(text: String) -> Result<Self, EtcdListenError> {
        text.parse()
    }
}

impl From<EtcdListen> for String {
    fn from(listen: EtcdListen) -> Self {
        listen.to_string()
    }
}

impl fmt::Display for EtcdListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.plain { "http" } else { "https" };
        write!(f, "{scheme}://{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_only() {
        let parse = |text: &str| text.parse::<EtcdListen>();
        let tls = parse("192.0.2.1:2379").unwrap();
        assert_eq!(tls.to_string(), "https://192.0.2.1:2379");
        assert_eq!(parse("https://192.0.2.1:2379/"), Ok(tls));
        assert!(parse("http://127.0.0.1:2379").unwrap().plain);
        assert!(parse("http://[::1]:2379").unwrap().plain);
        assert_eq!(
            parse("http://192.0.2.1:2379"),
            Err(EtcdListenError::PlainOutside)
        );
        assert_eq!(
            parse("http://0.0.0.0:2379"),
            Err(EtcdListenError::PlainOutside)
        );
        for bad in [
            "",
            "2379",
            ":2379",
            "localhost:2379",
            "ftp://127.0.0.1:1",
            "127.0.0.1",
        ] {
            assert_eq!(parse(bad), Err(EtcdListenError::Form), "{bad}");
        }
    }
}
