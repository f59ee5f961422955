//! An IPv4 range in CIDR notation.
//!
//! Pure; watches and changes nothing.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// Why a text is no CIDR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// There is no `/`.
    #[error("`{0}` is not an address range such as 10.244.0.0/24: the prefix length is missing")]
    MissingPrefix(String),
    /// What is before the `/` is no IPv4 address.
    #[error("`{0}` does not start with an IPv4 address")]
    Address(String),
    /// What is after the `/` is not a number up to 32.
    #[error("`{0}` does not end in a prefix length between 0 and 32")]
    Prefix(String),
    /// Bits after the prefix are set.
    #[error("`{0}` has bits set after its prefix; the range is {1}")]
    HostBits(String, Cidr),
}

/// Network address and prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    network: Ipv4Addr,
    prefix: u8,
}

impl Cidr {
    /// The range of `prefix` bits around `address`; longer prefixes than 32 count as 32.
    pub fn around(address: Ipv4Addr, prefix: u8) -> Self {
        let prefix = prefix.min(32);
        Self {
            network: Ipv4Addr::from_bits(address.to_bits() & mask(prefix)),
            prefix,
        }
    }

    /// First address of the range.
    pub fn network(&self) -> Ipv4Addr {
        self.network
    }

    /// Last address of the range.
    pub fn broadcast(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() | !mask(self.prefix))
    }

    /// Prefix length.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The netmask as an address.
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(mask(self.prefix))
    }

    /// Number of addresses, network and broadcast included.
    pub fn size(&self) -> u64 {
        1 << (32 - u32::from(self.prefix))
    }

    /// The `index`th address of the range.
    pub fn nth(&self, index: u64) -> Option<Ipv4Addr> {
        if index >= self.size() {
            return None;
        }
        let index = u32::try_from(index).ok()?;
        Some(Ipv4Addr::from_bits(self.network.to_bits() | index))
    }

    /// Whether `address` is in the range.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.prefix) == self.network.to_bits()
    }

    /// Position of `address` in the range.
    pub fn index_of(&self, address: Ipv4Addr) -> Option<u64> {
        self.contains(address)
            .then(|| u64::from(address.to_bits() - self.network.to_bits()))
    }

    /// Whether the two ranges have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(prefix))
        .unwrap_or_default()
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = text
            .split_once('/')
            .ok_or_else(|| CidrError::MissingPrefix(text.to_owned()))?;
        let address: Ipv4Addr = address
            .parse()
            .map_err(|_error| CidrError::Address(text.to_owned()))?;
        let prefix = prefix
            .parse()
            .ok()
            .filter(|prefix| *prefix <= 32)
            .ok_or_else(|| CidrError::Prefix(text.to_owned()))?;
        let cidr = Self::around(address, prefix);
        if cidr.network != address {
            return Err(CidrError::HostBits(text.to_owned(), cidr));
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_counted() {
        let cidr: Cidr = "10.244.1.0/24".parse().unwrap();
        assert_eq!(cidr.size(), 256);
        assert_eq!(cidr.nth(1), Some(Ipv4Addr::new(10, 244, 1, 1)));
        assert_eq!(cidr.nth(256), None);
        assert_eq!(cidr.broadcast(), Ipv4Addr::new(10, 244, 1, 255));
        assert!(cidr.contains(Ipv4Addr::new(10, 244, 1, 77)));
        assert!(!cidr.contains(Ipv4Addr::new(10, 244, 2, 1)));
        assert_eq!(cidr.index_of(Ipv4Addr::new(10, 244, 1, 9)), Some(9));
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains(Ipv4Addr::BROADCAST));
        assert!(all.overlaps(&cidr) && cidr.overlaps(&all));
        let one: Cidr = "10.0.0.1/32".parse().unwrap();
        assert_eq!((one.size(), one.nth(0)), (1, Some(one.network())));
    }

    #[test]
    fn bad_ranges_say_what_is_wrong() {
        let error = |text: &str| text.parse::<Cidr>().unwrap_err().to_string();
        assert!(error("10.0.0.0").contains("prefix length is missing"));
        assert!(error("10.0.0/8").contains("IPv4 address"));
        assert!(error("10.0.0.0/33").contains("between 0 and 32"));
        assert!(error("10.0.0.1/24").contains("the range is 10.0.0.0/24"));
    }
}
