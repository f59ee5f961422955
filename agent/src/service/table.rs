//! What the maps hold, and the writes that bring them to what is asked for.
//!
//! Pure. [`Table::plan`] compares; the caller performs each [`Op`] on the maps in order and
//! tells the table by [`Table::commit`], so that after a failed write the table still says
//! what the maps hold.
//!
//! The order never shows half a service to the programs, which read a frontend and then one
//! of its slots: slots are written before the count that makes them reachable grows, the count
//! shrinks before the slots behind it go, and a slot in use is only ever overwritten whole
//! with another backend of the same service.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use pintle_ebpf_abi::{Backend, BackendKey, Frontend, FrontendKey, UdpFlowKey};

use super::desired::{DesiredPort, PortId};

const UDP: u8 = 17;

/// One write to the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    PutBackend(BackendKey, Backend),
    PutFrontend(FrontendKey, Frontend),
    RemoveFrontend(FrontendKey),
    RemoveBackend(BackendKey),
}

/// Image of the maps, plus which Service owns what.
#[derive(Debug, Default)]
pub(super) struct Table {
    frontends: HashMap<FrontendKey, Frontend>,
    /// Frontends by service number.
    frontends_of: HashMap<u32, BTreeSet<FrontendKey>>,
    /// Number of backends in all sets.
    backends: usize,
    /// Slots by service number; a gap (`None`) only appears after a failed write.
    sets: HashMap<u32, Vec<Option<Backend>>>,
    owners: HashMap<String, BTreeMap<PortId, u32>>,
    /// Service numbers that a Service has given up but whose entries may still be there.
    retiring: HashMap<String, BTreeSet<u32>>,
    claimed: HashSet<u32>,
    next: u32,
}

impl Table {
    /// The table of maps found pinned; nothing is owned yet.
    pub(super) fn adopt(
        frontends: impl IntoIterator<Item = (FrontendKey, Frontend)>,
        backends: impl IntoIterator<Item = (BackendKey, Backend)>,
    ) -> Self {
        let mut table = Self::default();
        for (key, frontend) in frontends {
            table.commit(&Op::PutFrontend(key, frontend));
        }
        for (key, backend) in backends {
            table.commit(&Op::PutBackend(key, backend));
        }
        table
    }

    /// Number of frontends and of backends in the maps.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.frontends.len(), self.backends)
    }

    /// Takes note of a write that was done.
    pub(super) fn commit(&mut self, op: &Op) {
        match *op {
            Op::PutFrontend(key, frontend) => {
                self.next = self.next.max(frontend.service.wrapping_add(1));
                let old = self.frontends.insert(key, frontend);
                if let Some(old) = old.filter(|old| old.service != frontend.service) {
                    self.forget_frontend(old.service, key);
                }
                self.frontends_of
                    .entry(frontend.service)
                    .or_default()
                    .insert(key);
            }
            Op::RemoveFrontend(key) => {
                if let Some(old) = self.frontends.remove(&key) {
                    self.forget_frontend(old.service, key);
                }
            }
            Op::PutBackend(key, backend) => {
                self.next = self.next.max(key.service.wrapping_add(1));
                let set = self.sets.entry(key.service).or_default();
                let slot = key.slot as usize;
                if set.len() <= slot {
                    set.resize(slot + 1, None);
                }
                if set[slot].replace(backend).is_none() {
                    self.backends += 1;
                }
            }
            Op::RemoveBackend(key) => {
                if let Some(set) = self.sets.get_mut(&key.service) {
                    let slot = set.get_mut(key.slot as usize);
                    if slot.and_then(Option::take).is_some() {
                        self.backends -= 1;
                    }
                    while set.last().is_some_and(Option::is_none) {
                        set.pop();
                    }
                    if set.is_empty() {
                        self.sets.remove(&key.service);
                    }
                }
            }
        }
    }

    /// Writes that make the maps say `desired` for the Service `key`. Ownership is recorded at
    /// once; the maps' image only by [`commit`](Self::commit). When all writes are done,
    /// [`settle`](Self::settle) it; else the next plan repeats what is missing.
    pub(super) fn plan(&mut self, key: &str, desired: &[DesiredPort]) -> Vec<Op> {
        let before = self.owners.remove(key).unwrap_or_default();
        let mut after = BTreeMap::new();
        let mut puts = Vec::new();
        let mut flips = Vec::new();
        let mut removals = Vec::new();
        let mut kept: BTreeSet<FrontendKey> = BTreeSet::new();
        for port in desired {
            let service = before
                .get(&port.id)
                .copied()
                .unwrap_or_else(|| self.claim(port));
            after.insert(port.id.clone(), service);
            let count = self.plan_set(service, &port.backends, &mut puts, &mut removals);
            for frontend in &port.frontends {
                let value = Frontend {
                    service,
                    count,
                    flags: 0,
                };
                kept.insert(*frontend);
                if self.frontends.get(frontend) != Some(&value) {
                    flips.push(Op::PutFrontend(*frontend, value));
                }
            }
        }
        let retiring = self.retiring.entry(key.to_owned()).or_default();
        retiring.extend(before.values().copied());
        retiring.retain(|service| !after.values().any(|kept| kept == service));
        let retiring = retiring.clone();
        let ours: BTreeSet<u32> = after.values().chain(&retiring).copied().collect();
        let mut gone: Vec<_> = ours
            .iter()
            .filter_map(|service| self.frontends_of.get(service))
            .flatten()
            .filter(|key| !kept.contains(key))
            .copied()
            .collect();
        gone.sort_unstable();
        flips.extend(gone.into_iter().map(Op::RemoveFrontend));
        for service in retiring {
            self.plan_removal(service, &mut removals);
        }
        if !after.is_empty() {
            self.owners.insert(key.to_owned(), after);
        }
        puts.extend(flips);
        puts.extend(removals);
        puts
    }

    /// All writes of the last plan for `key` are done.
    pub(super) fn settle(&mut self, key: &str) {
        for service in self.retiring.remove(key).unwrap_or_default() {
            self.claimed.remove(&service);
        }
    }

    /// Writes that remove whatever no Service has claimed since the table was adopted.
    pub(super) fn plan_unclaimed(&self) -> Vec<Op> {
        let mut ops: Vec<Op> = Vec::new();
        let mut keys: Vec<_> = self
            .frontends
            .iter()
            .filter(|(_, value)| !self.claimed.contains(&value.service))
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        ops.extend(keys.into_iter().map(Op::RemoveFrontend));
        let mut services: Vec<_> = self
            .sets
            .keys()
            .filter(|service| !self.claimed.contains(service))
            .copied()
            .collect();
        services.sort_unstable();
        for service in services {
            self.plan_removal(service, &mut ops);
        }
        ops
    }

    /// Whether a UDP socket may go on using `backend` for the frontend of `flow`.
    pub(super) fn flow_is_valid(&self, flow: &UdpFlowKey, backend: Backend) -> bool {
        let key = FrontendKey {
            address: flow.address,
            port: flow.port,
            protocol: UDP,
            scope: 0,
        };
        self.frontends.get(&key).is_some_and(|frontend| {
            self.sets
                .get(&frontend.service)
                .is_some_and(|set| set.contains(&Some(backend)))
        })
    }

    /// Whether `ops` take a backend or a frontend away from UDP sockets.
    pub(super) fn touches_udp(&self, ops: &[Op]) -> bool {
        let udp = |service: u32| {
            self.frontends_of
                .get(&service)
                .is_some_and(|keys| keys.iter().any(|key| key.protocol == UDP))
        };
        ops.iter().any(|op| match op {
            Op::PutBackend(key, backend) => {
                udp(key.service) && self.slot(*key).is_some_and(|current| current != *backend)
            }
            Op::RemoveBackend(key) => udp(key.service),
            Op::RemoveFrontend(key) => key.protocol == UDP,
            Op::PutFrontend(..) => false,
        })
    }

    fn forget_frontend(&mut self, service: u32, key: FrontendKey) {
        if let Some(keys) = self.frontends_of.get_mut(&service) {
            keys.remove(&key);
            if keys.is_empty() {
                self.frontends_of.remove(&service);
            }
        }
    }

    fn slot(&self, key: BackendKey) -> Option<Backend> {
        *self.sets.get(&key.service)?.get(key.slot as usize)?
    }

    /// The number of the service behind the port's addresses when no Service has it yet, as
    /// after a restart, else a new one.
    fn claim(&mut self, port: &DesiredPort) -> u32 {
        let found = port
            .frontends
            .iter()
            .filter_map(|key| self.frontends.get(key))
            .map(|frontend| frontend.service)
            .find(|service| !self.claimed.contains(service));
        let service = found.unwrap_or_else(|| {
            while self.claimed.contains(&self.next) || self.sets.contains_key(&self.next) {
                self.next = self.next.wrapping_add(1);
            }
            let service = self.next;
            self.next = self.next.wrapping_add(1);
            service
        });
        self.claimed.insert(service);
        service
    }

    /// Plans the slots of one service and returns their number.
    fn plan_set(
        &self,
        service: u32,
        wanted: &BTreeSet<Backend>,
        puts: &mut Vec<Op>,
        removals: &mut Vec<Op>,
    ) -> u32 {
        let empty = Vec::new();
        let current = self.sets.get(&service).unwrap_or(&empty);
        let mut missing = wanted.clone();
        // First occurrence of each wanted backend keeps its slot.
        let keep: Vec<bool> = current
            .iter()
            .map(|slot| slot.is_some_and(|backend| missing.remove(&backend)))
            .collect();
        // Slots beyond the new count go; wanted backends in them move into the holes.
        let count = wanted.len();
        let moved = current
            .iter()
            .zip(&keep)
            .skip(count)
            .filter(|(_, keep)| **keep)
            .filter_map(|(slot, _)| *slot);
        let mut arrivals = missing.into_iter().chain(moved);
        for slot in 0..count {
            if keep.get(slot).copied().unwrap_or(false) {
                continue;
            }
            if let Some(backend) = arrivals.next() {
                puts.push(Op::PutBackend(backend_key(service, slot), backend));
            }
        }
        for slot in count..current.len() {
            removals.push(Op::RemoveBackend(backend_key(service, slot)));
        }
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn plan_removal(&self, service: u32, ops: &mut Vec<Op>) {
        let slots = self.sets.get(&service).map_or(0, Vec::len);
        ops.extend((0..slots).map(|slot| Op::RemoveBackend(backend_key(service, slot))));
    }
}

fn backend_key(service: u32, slot: usize) -> BackendKey {
    BackendKey {
        service,
        slot: u32::try_from(slot).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backend(n: u8) -> Backend {
        Backend {
            address: u32::from_ne_bytes([10, 244, 0, n]),
            port: 80_u16.to_be(),
            flags: 0,
        }
    }

    fn port(vip: u8, protocol: u8, backends: &[u8]) -> DesiredPort {
        DesiredPort {
            id: PortId {
                name: String::new(),
                protocol,
            },
            frontends: vec![FrontendKey {
                address: u32::from_ne_bytes([10, 96, 0, vip]),
                port: 80_u16.to_be(),
                protocol,
                scope: 0,
            }],
            backends: backends.iter().copied().map(backend).collect(),
        }
    }

    /// The maps as a BPF program sees them.
    #[derive(Default)]
    struct Maps {
        frontends: HashMap<FrontendKey, Frontend>,
        backends: HashMap<BackendKey, Backend>,
    }

    impl Maps {
        fn perform(&mut self, op: &Op) {
            match *op {
                Op::PutBackend(key, value) => {
                    self.backends.insert(key, value);
                }
                Op::PutFrontend(key, value) => {
                    self.frontends.insert(key, value);
                }
                Op::RemoveFrontend(key) => {
                    self.frontends.remove(&key).unwrap();
                }
                Op::RemoveBackend(key) => {
                    self.backends.remove(&key).unwrap();
                }
            }
        }

        fn reachable(&self, key: FrontendKey) -> Option<BTreeSet<Backend>> {
            let frontend = self.frontends.get(&key)?;
            Some(
                (0..frontend.count)
                    .map(|slot| {
                        self.backends[&BackendKey {
                            service: frontend.service,
                            slot,
                        }]
                    })
                    .collect(),
            )
        }
    }

    fn run(table: &mut Table, maps: &mut Maps, key: &str, desired: &[DesiredPort]) -> usize {
        let ops = table.plan(key, desired);
        for op in &ops {
            maps.perform(op);
            table.commit(op);
        }
        table.settle(key);
        ops.len()
    }

    #[test]
    fn one_changed_endpoint_costs_a_few_writes() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        let many: Vec<u8> = (1..=100).collect();
        assert_eq!(
            run(&mut table, &mut maps, "a", &[port(1, 6, &many)]),
            101,
            "100 slots and one frontend"
        );
        let fewer: Vec<u8> = (2..=100).collect();
        let writes = run(&mut table, &mut maps, "a", &[port(1, 6, &fewer)]);
        assert_eq!(
            writes, 3,
            "move the last slot, shrink, remove the last slot"
        );
        let swapped: Vec<u8> = (3..=101).collect();
        assert_eq!(run(&mut table, &mut maps, "a", &[port(1, 6, &swapped)]), 1);
        assert_eq!(run(&mut table, &mut maps, "a", &[port(1, 6, &swapped)]), 0);
    }

    #[test]
    fn a_removed_service_leaves_nothing() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        run(&mut table, &mut maps, "a", &[port(1, 6, &[1, 2])]);
        run(&mut table, &mut maps, "a", &[]);
        assert!(maps.frontends.is_empty() && maps.backends.is_empty());
        assert_eq!(table.len(), (0, 0));
    }

    #[test]
    fn an_address_can_pass_to_another_service_before_the_first_one_goes() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        run(&mut table, &mut maps, "a", &[port(1, 6, &[1])]);
        run(&mut table, &mut maps, "b", &[port(1, 6, &[2])]);
        run(&mut table, &mut maps, "a", &[]);
        let key = port(1, 6, &[]).frontends[0];
        assert_eq!(maps.reachable(key), Some(BTreeSet::from([backend(2)])));
        assert_eq!(table.len(), (1, 1));
    }

    #[test]
    fn adoption_writes_only_what_differs() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        run(&mut table, &mut maps, "a", &[port(1, 6, &[1, 2])]);
        run(&mut table, &mut maps, "b", &[port(2, 6, &[3])]);
        let mut table = Table::adopt(maps.frontends.clone(), maps.backends.clone());
        assert_eq!(
            run(&mut table, &mut maps, "a", &[port(1, 6, &[1, 2])]),
            0,
            "the same state needs no write"
        );
        let ops = table.plan_unclaimed();
        assert_eq!(ops.len(), 2, "the frontend and the backend of b");
        for op in &ops {
            maps.perform(op);
            table.commit(op);
        }
        assert_eq!((maps.frontends.len(), maps.backends.len()), (1, 2));
        run(&mut table, &mut maps, "c", &[port(3, 6, &[4])]);
        assert_eq!(maps.frontends.len(), 2);
    }

    #[test]
    fn what_a_failed_write_left_undone_is_planned_again() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        run(
            &mut table,
            &mut maps,
            "a",
            &[port(1, 6, &[1]), port(1, UDP, &[1])],
        );
        let ops = table.plan("a", &[port(1, 6, &[1, 2])]);
        assert_eq!(ops.len(), 4);
        // Nothing is performed, as if the map were full.
        run(&mut table, &mut maps, "a", &[port(1, 6, &[1])]);
        assert_eq!((maps.frontends.len(), maps.backends.len()), (1, 1));
    }

    #[test]
    fn udp_flows_end_with_their_backend() {
        let (mut table, mut maps) = (Table::default(), Maps::default());
        run(&mut table, &mut maps, "a", &[port(1, UDP, &[1, 2])]);
        let flow = UdpFlowKey {
            cookie: 1,
            address: u32::from_ne_bytes([10, 96, 0, 1]),
            port: 80_u16.to_be(),
            flags: 0,
        };
        assert!(table.flow_is_valid(&flow, backend(1)));
        let ops = table.plan("a", &[port(1, UDP, &[2])]);
        assert!(table.touches_udp(&ops));
        for op in &ops {
            maps.perform(op);
            table.commit(op);
        }
        assert!(!table.flow_is_valid(&flow, backend(1)));
        assert!(table.flow_is_valid(&flow, backend(2)));
        let ops = table.plan("a", &[port(1, UDP, &[2, 3])]);
        assert!(!table.touches_udp(&ops), "an addition harms no flow");
    }

    proptest! {
        /// Whatever is asked for in whatever order: at the end the maps say exactly that, and
        /// at every step between each address leads only to backends that were asked for
        /// before or after the change.
        #[test]
        fn every_step_shows_a_whole_service(
            steps in prop::collection::vec(
                (0_u8..3, 1_u8..4, prop::option::of(prop::collection::vec(1_u8..12, 0..8))),
                1..40,
            ),
            restart_at in 0_usize..40,
        ) {
            let (mut table, mut maps) = (Table::default(), Maps::default());
            let mut wanted: HashMap<u8, DesiredPort> = HashMap::new();
            for (index, (service, vip, backends)) in steps.into_iter().enumerate() {
                // Addresses of two Services never overlap.
                let vip = service * 10 + vip;
                if index == restart_at {
                    table = Table::adopt(maps.frontends.clone(), maps.backends.clone());
                    for (service, port) in &wanted {
                        let ops = table.plan(&service.to_string(), std::slice::from_ref(port));
                        prop_assert!(ops.is_empty());
                    }
                    prop_assert!(table.plan_unclaimed().is_empty());
                }
                let old = wanted.get(&service).cloned();
                let new = backends.map(|backends| port(vip, 6, &backends));
                let desired: Vec<_> = new.iter().cloned().collect();
                for op in table.plan(&service.to_string(), &desired) {
                    maps.perform(&op);
                    table.commit(&op);
                    let allowed: BTreeSet<Backend> = old.iter().chain(&new)
                        .flat_map(|port| port.backends.iter().copied()).collect();
                    for key in old.iter().chain(&new).flat_map(|port| port.frontends.clone()) {
                        if let Some(seen) = maps.reachable(key) {
                            prop_assert!(seen.is_subset(&allowed));
                        }
                    }
                }
                table.settle(&service.to_string());
                match new {
                    Some(port) => { wanted.insert(service, port); }
                    None => { wanted.remove(&service); }
                }
                prop_assert_eq!(maps.frontends.len(), wanted.len());
                for port in wanted.values() {
                    let seen = maps.reachable(port.frontends[0]);
                    prop_assert_eq!(seen.as_ref(), Some(&port.backends));
                }
                let total: usize = wanted.values().map(|port| port.backends.len()).sum();
                prop_assert_eq!(maps.backends.len(), total);
            }
        }
    }
}
