//! Which part of the cluster's pod range each node has. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::ControllersError;

/// The division of a range into equal parts, and who has which.
#[derive(Debug, Clone)]
pub(crate) struct NodeRanges {
    base: u32,
    mask: u8,
    count: u32,
    by_node: BTreeMap<String, u32>,
    used: BTreeSet<u32>,
}

impl NodeRanges {
    /// Divides `cidr` into ranges of prefix length `mask`.
    pub(crate) fn new(cidr: &str, mask: u8) -> Result<Self, ControllersError> {
        let wrong = |reason| ControllersError::PodCidr {
            cidr: cidr.to_owned(),
            mask,
            reason,
        };
        let (address, prefix) =
            parse(cidr).ok_or_else(|| wrong("it is no IPv4 range such as 10.244.0.0/16"))?;
        if mask > 30 {
            return Err(wrong("a node needs room for at least two addresses"));
        }
        if prefix > mask {
            return Err(wrong("it is smaller than one node's range"));
        }
        if mask - prefix > 16 {
            return Err(wrong("it would make more than 65536 ranges"));
        }
        Ok(Self {
            base: address,
            mask,
            count: 1 << (mask - prefix),
            by_node: BTreeMap::new(),
            used: BTreeSet::new(),
        })
    }

    fn size(&self) -> u32 {
        1 << (32 - self.mask)
    }

    fn format(&self, index: u32) -> String {
        let address = Ipv4Addr::from(self.base + index * self.size());
        format!("{address}/{}", self.mask)
    }

    fn index(&self, cidr: &str) -> Option<u32> {
        let (address, _) = parse(cidr)?;
        let index = address.checked_sub(self.base)? / self.size();
        (index < self.count).then_some(index)
    }

    /// Notes that a node has a range already.
    pub(crate) fn occupy(&mut self, node: &str, cidr: &str) {
        if let Some(index) = self.index(cidr)
            && self.used.insert(index)
        {
            self.by_node.insert(node.to_owned(), index);
        }
    }

    /// A range for a node: the one it has, or the first free one. `None` when all are taken.
    pub(crate) fn allocate(&mut self, node: &str) -> Option<String> {
        if let Some(index) = self.by_node.get(node) {
            return Some(self.format(*index));
        }
        let index = (0..self.count).find(|index| !self.used.contains(index))?;
        self.used.insert(index);
        self.by_node.insert(node.to_owned(), index);
        Some(self.format(index))
    }

    /// Takes back the range of a node that is gone.
    pub(crate) fn release(&mut self, node: &str) {
        if let Some(index) = self.by_node.remove(node) {
            self.used.remove(&index);
        }
    }
}

fn parse(cidr: &str) -> Option<(u32, u8)> {
    let (address, prefix) = cidr.split_once('/')?;
    let address: Ipv4Addr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    let keep = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    Some((u32::from(address) & keep, prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_handed_out_and_taken_back() {
        let mut ranges = NodeRanges::new("10.244.0.0/16", 24).expect("valid");
        ranges.occupy("old", "10.244.0.0/24");
        assert_eq!(ranges.allocate("a").as_deref(), Some("10.244.1.0/24"));
        assert_eq!(ranges.allocate("b").as_deref(), Some("10.244.2.0/24"));
        assert_eq!(ranges.allocate("a").as_deref(), Some("10.244.1.0/24"));
        ranges.release("old");
        assert_eq!(ranges.allocate("c").as_deref(), Some("10.244.0.0/24"));
        assert_eq!(ranges.allocate("old").as_deref(), Some("10.244.3.0/24"));
    }

    #[test]
    fn a_range_as_large_as_a_nodes_serves_one_node() {
        let mut ranges = NodeRanges::new("10.1.2.0/24", 24).expect("valid");
        assert_eq!(ranges.allocate("a").as_deref(), Some("10.1.2.0/24"));
        assert_eq!(ranges.allocate("b"), None);
    }

    #[test]
    fn unusable_ranges_are_refused() {
        for (cidr, mask) in [
            ("10.0.0.0", 24),
            ("10.0.0.0/33", 24),
            ("x/16", 24),
            ("10.0.0.0/25", 24),
            ("10.0.0.0/16", 31),
            ("10.0.0.0/4", 24),
        ] {
            assert!(NodeRanges::new(cidr, mask).is_err(), "{cidr} {mask}");
        }
    }

    proptest! {
        #[test]
        fn no_two_nodes_share_a_range(steps in prop::collection::vec((any::<bool>(), 0_u8..12), 0..60)) {
            let mut ranges = NodeRanges::new("10.0.0.0/21", 24).expect("valid");
            let mut held: BTreeMap<u8, String> = BTreeMap::new();
            for (take, node) in steps {
                let name = format!("n{node}");
                if take {
                    if let Some(cidr) = ranges.allocate(&name) {
                        held.insert(node, cidr);
                    } else {
                        prop_assert_eq!(held.len(), 8);
                    }
                } else {
                    ranges.release(&name);
                    held.remove(&node);
                }
                let distinct: BTreeSet<&String> = held.values().collect();
                prop_assert_eq!(distinct.len(), held.len());
            }
        }
    }
}
