//! Filter and score: pods that want to be near, or not near, other pods.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};
use pintle_kube_types::LabelSelector;

use super::{MAX_SCORE, Plugin, Rejection};
use crate::cluster::{Cluster, NodeInfo, PodInfo};

/// A term with its selectors parsed, as seen from the pod that has it.
struct Term {
    key: String,
    selector: LabelSelector,
    namespaces: Vec<String>,
    namespace_selector: Option<LabelSelector>,
}

impl Term {
    fn new(term: &PodAffinityTerm, owner: &PodInfo) -> Self {
        let parse = |selector| {
            LabelSelector::from_typed(selector).unwrap_or_else(|_| LabelSelector::nothing())
        };
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(owner.namespace().to_owned());
        }
        Self {
            key: term.topology_key.clone(),
            selector: parse(term.label_selector.as_ref()),
            namespaces,
            namespace_selector: term
                .namespace_selector
                .as_ref()
                .map(|selector| parse(Some(selector))),
        }
    }

    fn matches(&self, cluster: &Cluster, other: &PodInfo) -> bool {
        let namespace = other.namespace();
        let here = self.namespaces.iter().any(|name| name == namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| {
                selector.matches_labels(cluster.namespace_labels(namespace))
            });
        here && self.selector.matches_labels(other.labels())
    }
}

fn affinity(pod: &PodInfo) -> Option<&Affinity> {
    pod.pod.spec.as_ref()?.affinity.as_ref()
}

fn terms(list: Option<&Vec<PodAffinityTerm>>, pod: &PodInfo) -> Vec<Term> {
    list.into_iter()
        .flatten()
        .map(|term| Term::new(term, pod))
        .collect()
}

/// Matching pods per (label, value).
type Counts = HashMap<(String, String), i64>;

fn add(counts: &mut Counts, key: &str, node: &NodeInfo, amount: i64) {
    if let Some(value) = node.label(key) {
        *counts
            .entry((key.to_owned(), value.to_owned()))
            .or_default() += amount;
    }
}

fn count(counts: &Counts, key: &str, node: &NodeInfo) -> i64 {
    node.label(key)
        .and_then(|value| counts.get(&(key.to_owned(), value.to_owned())))
        .copied()
        .unwrap_or(0)
}

/// One pod's rules, counted once for all nodes.
pub(crate) struct Prepared {
    affinity: Vec<Term>,
    affinity_counts: Counts,
    /// The pod fulfils its own affinity: it may be the first of its group.
    own: bool,
    anti: Vec<Term>,
    anti_counts: Counts,
    /// Where others do not want this pod.
    repelled: Counts,
}

pub(crate) fn prepare(cluster: &Cluster, pod: &PodInfo) -> Prepared {
    let affinity_of = affinity(pod);
    let affinity = terms(
        affinity_of
            .and_then(|affinity| affinity.pod_affinity.as_ref())
            .and_then(|near| {
                near.required_during_scheduling_ignored_during_execution
                    .as_ref()
            }),
        pod,
    );
    let anti: Vec<Term> = pod
        .required_anti_affinity()
        .iter()
        .map(|term| Term::new(term, pod))
        .collect();
    let mut affinity_counts = Counts::new();
    let mut anti_counts = Counts::new();
    if !affinity.is_empty() || !anti.is_empty() {
        for (node, other) in cluster.pods() {
            if !affinity.is_empty() && affinity.iter().all(|term| term.matches(cluster, other)) {
                for term in &affinity {
                    add(&mut affinity_counts, &term.key, node, 1);
                }
            }
            for term in anti.iter().filter(|term| term.matches(cluster, other)) {
                add(&mut anti_counts, &term.key, node, 1);
            }
        }
    }
    let mut repelled = Counts::new();
    for (node, other) in cluster.repelling() {
        for term in other.required_anti_affinity() {
            if Term::new(term, other).matches(cluster, pod) {
                add(&mut repelled, &term.topology_key, node, 1);
            }
        }
    }
    let own = affinity.iter().all(|term| term.matches(cluster, pod));
    Prepared {
        affinity,
        affinity_counts,
        own,
        anti,
        anti_counts,
        repelled,
    }
}

impl Prepared {
    pub(crate) fn filter(&self, node: &NodeInfo) -> Option<Rejection> {
        let reject =
            |reason: &str, helps| Some(Rejection::new(Plugin::InterPodAffinity, reason, helps));
        if !self.affinity_holds(node) {
            return reject("node(s) didn't match pod affinity rules", false);
        }
        if self
            .anti
            .iter()
            .any(|term| count(&self.anti_counts, &term.key, node) > 0)
        {
            return reject("node(s) didn't match pod anti-affinity rules", true);
        }
        let unwanted = self
            .repelled
            .keys()
            .any(|(key, value)| node.label(key) == Some(value));
        if unwanted {
            return reject(
                "node(s) didn't satisfy existing pods anti-affinity rules",
                true,
            );
        }
        None
    }

    fn affinity_holds(&self, node: &NodeInfo) -> bool {
        if self
            .affinity
            .iter()
            .any(|term| node.label(&term.key).is_none())
        {
            return false;
        }
        let near = self
            .affinity
            .iter()
            .all(|term| count(&self.affinity_counts, &term.key, node) > 0);
        near || (self.affinity_counts.is_empty() && self.own)
    }
}

fn weighted<'a>(
    list: Option<&'a Vec<WeightedPodAffinityTerm>>,
    sign: i64,
    pod: &'a PodInfo,
) -> impl Iterator<Item = (Term, i64)> + 'a {
    list.into_iter().flatten().map(move |term| {
        (
            Term::new(&term.pod_affinity_term, pod),
            sign * i64::from(term.weight),
        )
    })
}

/// Scores of the feasible nodes by the pod's preferred terms; more is better.
pub(crate) fn scores(cluster: &Cluster, pod: &PodInfo, nodes: &[(&str, &NodeInfo)]) -> Vec<i64> {
    let Some(affinity) = affinity(pod) else {
        return vec![0; nodes.len()];
    };
    let near = affinity.pod_affinity.as_ref().and_then(|near| {
        near.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let far = affinity.pod_anti_affinity.as_ref().and_then(|far| {
        far.preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let preferred: Vec<(Term, i64)> = weighted(near, 1, pod)
        .chain(weighted(far, -1, pod))
        .collect();
    let mut sums = Counts::new();
    if !preferred.is_empty() {
        for (node, other) in cluster.pods() {
            for (term, weight) in &preferred {
                if term.matches(cluster, other) {
                    add(&mut sums, &term.key, node, *weight);
                }
            }
        }
    }
    let raw: Vec<i64> = nodes
        .iter()
        .map(|(_, node)| {
            sums.iter()
                .filter(|((key, value), _)| node.label(key) == Some(value))
                .map(|(_, sum)| *sum)
                .sum()
        })
        .collect();
    let least = raw.iter().copied().min().unwrap_or(0);
    let spread = raw.iter().copied().max().unwrap_or(0) - least;
    raw.iter()
        .map(|score| {
            if spread == 0 {
                0
            } else {
                MAX_SCORE * (score - least) / spread
            }
        })
        .collect()
}
