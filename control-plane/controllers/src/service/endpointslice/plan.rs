//! From the slices that exist and the endpoints that should exist to the fewest writes: a change of
//! one pod touches one slice, whatever the size of the Service. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};

use crate::runtime::selector::Labels;

/// The most endpoints one slice holds.
pub(crate) const MAX_ENDPOINTS: usize = 100;

/// Ports and the endpoints that serve exactly these ports. (Pods may resolve a port name
/// differently, then they need slices of their own.)
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// What every slice of this Service and address family carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) address_type: String,
    pub(crate) labels: Labels,
}

/// A slice to be made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NewSlice {
    pub(crate) address_type: String,
    pub(crate) ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// The writes that lead from what is to what should be.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Plan {
    pub(crate) create: Vec<NewSlice>,
    pub(crate) update: Vec<EndpointSlice>,
    pub(crate) delete: Vec<Arc<EndpointSlice>>,
}

impl Plan {
    fn extend(&mut self, other: Plan) {
        self.create.extend(other.create);
        self.update.extend(other.update);
        self.delete.extend(other.delete);
    }
}

/// What makes an endpoint the same endpoint: its pod and address.
fn identity(endpoint: &Endpoint) -> (String, String) {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|target| target.uid.clone())
        .unwrap_or_default();
    let address = endpoint.addresses.first().cloned().unwrap_or_default();
    (uid, address)
}

fn port_key(ports: &[EndpointPort]) -> Vec<(String, String, i32, String)> {
    let mut key: Vec<_> = ports
        .iter()
        .map(|port| {
            (
                port.name.clone().unwrap_or_default(),
                port.protocol.clone().unwrap_or_default(),
                port.port.unwrap_or(0),
                port.app_protocol.clone().unwrap_or_default(),
            )
        })
        .collect();
    key.sort();
    key
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

/// The plan for one address family: `existing` are its slices, `groups` what should be there.
pub(crate) fn plan(frame: &Frame, existing: &[Arc<EndpointSlice>], groups: Vec<Group>) -> Plan {
    let mut by_ports: BTreeMap<_, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let key = port_key(slice.ports.as_deref().unwrap_or_default());
        by_ports.entry(key).or_default().push(Arc::clone(slice));
    }
    let mut result = Plan::default();
    if groups.iter().all(|group| group.endpoints.is_empty()) {
        return placeholder(frame, existing);
    }
    for group in groups {
        let slices = by_ports.remove(&port_key(&group.ports)).unwrap_or_default();
        result.extend(plan_group(frame, &slices, group));
    }
    result.delete.extend(by_ports.into_values().flatten());
    result
}

/// Without endpoints one empty slice stays, so that everyone sees that the Service was looked at.
fn placeholder(frame: &Frame, existing: &[Arc<EndpointSlice>]) -> Plan {
    let mut result = Plan::default();
    let kept = existing.iter().position(|slice| {
        endpoints(slice).is_empty() && slice.ports.as_deref().unwrap_or_default().is_empty()
    });
    for (index, slice) in existing.iter().enumerate() {
        if Some(index) != kept {
            result.delete.push(Arc::clone(slice));
        } else if slice.metadata.labels.as_ref() != Some(&frame.labels) {
            let mut slice = EndpointSlice::clone(slice);
            slice.metadata.labels = Some(frame.labels.clone());
            result.update.push(slice);
        }
    }
    if kept.is_none() {
        result.create.push(NewSlice {
            address_type: frame.address_type.clone(),
            ports: Vec::new(),
            endpoints: Vec::new(),
        });
    }
    result
}

fn plan_group(frame: &Frame, existing: &[Arc<EndpointSlice>], group: Group) -> Plan {
    let mut wanted: BTreeMap<_, Endpoint> = group
        .endpoints
        .into_iter()
        .map(|endpoint| (identity(&endpoint), endpoint))
        .collect();
    let mut untouched: Vec<&Arc<EndpointSlice>> = Vec::new();
    let mut updates: Vec<EndpointSlice> = Vec::new();
    let mut result = Plan::default();

    // What is there already stays where it is.
    for slice in existing {
        let mut kept = Vec::new();
        let mut changed = false;
        for endpoint in endpoints(slice) {
            match wanted.remove(&identity(endpoint)) {
                Some(wanted) => {
                    changed |= wanted != *endpoint;
                    kept.push(wanted);
                }
                None => changed = true,
            }
        }
        if kept.is_empty() {
            result.delete.push(Arc::clone(slice));
        } else if changed || slice.metadata.labels.as_ref() != Some(&frame.labels) {
            let mut slice = EndpointSlice::clone(slice);
            slice.metadata.labels = Some(frame.labels.clone());
            slice.endpoints = Some(kept);
            updates.push(slice);
        } else {
            untouched.push(slice);
        }
    }

    // New ones go where a write happens anyway,
    let mut new: Vec<Endpoint> = wanted.into_values().collect();
    updates.sort_by_key(|slice| std::cmp::Reverse(endpoints(slice).len()));
    for slice in &mut updates {
        let room = MAX_ENDPOINTS.saturating_sub(endpoints(slice).len());
        let taken = new.len().saturating_sub(room);
        slice
            .endpoints
            .get_or_insert_default()
            .extend(new.drain(taken..));
    }
    // then into a slice about to be deleted, which saves a delete and a create,
    while !new.is_empty()
        && let Some(slice) = result.delete.pop()
    {
        let mut slice = EndpointSlice::clone(&slice);
        slice.metadata.labels = Some(frame.labels.clone());
        slice.endpoints = Some(
            new.drain(new.len().saturating_sub(MAX_ENDPOINTS)..)
                .collect(),
        );
        updates.push(slice);
    }
    // then into the fullest untouched slice that takes all the rest, or else into new slices.
    while !new.is_empty() {
        let fitting = untouched
            .iter()
            .enumerate()
            .filter(|(_, slice)| endpoints(slice).len() + new.len() <= MAX_ENDPOINTS)
            .max_by_key(|(_, slice)| endpoints(slice).len())
            .map(|(index, _)| index);
        if let Some(index) = fitting {
            let mut slice = EndpointSlice::clone(untouched.swap_remove(index));
            slice.endpoints.get_or_insert_default().append(&mut new);
            updates.push(slice);
        } else {
            let size = new.len().min(MAX_ENDPOINTS);
            result.create.push(NewSlice {
                address_type: frame.address_type.clone(),
                ports: group.ports.clone(),
                endpoints: new.drain(..size).collect(),
            });
        }
    }
    result.update = updates;
    result
}

#[cfg(test)]
mod tests;
