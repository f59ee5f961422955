//! The versioned state against a model that keeps everything in one list.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::apply::{Command, validate};
use super::history::PastError;
use super::*;
use crate::error::Rejection;
use crate::key_value::{Compare, Op, OpResponse, Txn};
use crate::request::{Reply, Request};
use crate::watch::EventKind;
use crate::watch::hub::HubLimits;

fn machine(dir: &Path) -> Machine {
    let hub = Hub::new(HubLimits {
        ring_events: 0,
        ring_bytes: 0,
        buffer: 16,
    });
    Machine::open(&dir.join("state.redb"), 1 << 20, Arc::new(hub)).unwrap()
}

/// Every version there ever was: (key, revision) → version, `None` for a tombstone.
#[derive(Debug, Default)]
struct Model {
    revision: Revision,
    compacted: Revision,
    versions: BTreeMap<(Bytes, Revision), Option<KeyValue>>,
}

impl Model {
    fn at(&self, key: &Bytes, revision: Revision) -> Option<&KeyValue> {
        let (_, version) = self
            .versions
            .range((key.clone(), 0)..=(key.clone(), revision))
            .next_back()?;
        version.as_ref()
    }

    fn keys(&self, revision: Revision) -> Vec<&KeyValue> {
        let mut keys: Vec<&Bytes> = self.versions.keys().map(|(key, _)| key).collect();
        keys.dedup();
        keys.into_iter()
            .filter_map(|key| self.at(key, revision))
            .collect()
    }

    fn apply(&mut self, txn: &Txn) -> (bool, Vec<usize>) {
        let holds = txn.compares.iter().all(|compare| {
            let crate::key_value::CompareTarget::ModRevision(given) = compare.target else {
                panic!("not generated")
            };
            self.at(&compare.key, self.revision)
                .map_or(0, |kv| kv.mod_revision)
                == given
        });
        let revision = self.revision + 1;
        let mut changed = false;
        let mut deleted = Vec::new();
        for op in if holds { &txn.success } else { &txn.failure } {
            match op {
                Op::Put { key, value, .. } => {
                    let prev = self.at(key, self.revision).cloned();
                    let kv = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: prev.as_ref().map_or(revision, |kv| kv.create_revision),
                        mod_revision: revision,
                        version: prev.map_or(0, |kv| kv.version) + 1,
                        lease: 0,
                    };
                    self.versions.insert((key.clone(), revision), Some(kv));
                    changed = true;
                }
                Op::Delete { start, end } => {
                    let gone: Vec<Bytes> = self
                        .keys(revision)
                        .into_iter()
                        .map(|kv| kv.key.clone())
                        .filter(|key| read::contains(start, end, &key[..]))
                        .collect();
                    deleted.push(gone.len());
                    changed |= !gone.is_empty();
                    for key in gone {
                        self.versions.insert((key, revision), None);
                    }
                }
                Op::Update { .. } | Op::Range(_) | Op::Txn(_) => panic!("not generated"),
            }
        }
        if changed {
            self.revision = revision;
        }
        (holds, deleted)
    }
}

#[derive(Debug, Clone)]
enum Step {
    Txn(Txn),
    Compact(u8),
    Checkpoint,
    Reopen,
}

fn key() -> impl Strategy<Value = Bytes> {
    // Some are prefixes of others, and some sort around the end of a prefix.
    prop::sample::select(vec!["a", "a/", "a/1", "a/2", "a0", "b", "b\u{7f}", "c"])
        .prop_map(|key| Bytes::from_static(key.as_bytes()))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (key(), prop::collection::vec(any::<u8>(), 0..6)).prop_map(|(key, value)| Op::put(key, value)),
        1 => key().prop_map(Op::delete),
        1 => (key(), key()).prop_map(|(start, end)| Op::Delete { start, end }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let compare =
        (key(), 0_u64..20).prop_map(|(key, revision)| Compare::mod_revision(key, revision));
    let txn = (
        prop::collection::vec(compare, 0..2),
        prop::collection::vec(op(), 0..4),
        prop::collection::vec(op(), 0..3),
    )
        .prop_map(|(compares, success, failure)| {
            Step::Txn(Txn {
                compares,
                success,
                failure,
            })
        });
    prop_oneof![
        12 => txn,
        1 => any::<u8>().prop_map(Step::Compact),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Reopen),
    ]
}

fn check_reads(machine: &Machine, model: &Model) {
    let everything = RangeRequest::prefix("");
    for revision in model.compacted..=model.revision {
        let request = RangeRequest {
            revision: Some(revision),
            ..everything.clone()
        };
        let expected = model.keys(revision);
        let read = machine.range(&request).unwrap();
        assert_eq!(
            read.kvs.iter().collect::<Vec<_>>(),
            expected,
            "at {revision}"
        );
        assert_eq!(
            (read.count, read.revision),
            (expected.len() as u64, model.revision)
        );
        let limited = machine
            .range(&RangeRequest {
                limit: 2,
                ..request.clone()
            })
            .unwrap();
        assert_eq!(limited.kvs, read.kvs[..read.kvs.len().min(2)]);
        assert_eq!((limited.count, limited.more), (read.count, read.count > 2));
        let counted = machine
            .range(&RangeRequest {
                count_only: true,
                ..request.clone()
            })
            .unwrap();
        assert_eq!((counted.count, counted.kvs.len()), (read.count, 0));
        let part = RangeRequest {
            start: "a/".into(),
            end: "b".into(),
            keys_only: true,
            ..request
        };
        let part = machine.range(&part).unwrap();
        let keys = expected
            .iter()
            .map(|kv| &kv.key)
            .filter(|key| read::contains(b"a/", b"b", &key[..]));
        assert!(part.kvs.iter().map(|kv| &kv.key).eq(keys));
        assert!(part.kvs.iter().all(|kv| kv.value.is_empty()));
    }
    for kv in model.keys(model.revision) {
        assert_eq!(machine.get(&kv.key).unwrap().as_ref(), Some(kv));
    }
    if model.compacted > 0 {
        let gone = RangeRequest {
            revision: Some(model.compacted - 1),
            ..everything
        };
        assert!(matches!(
            machine.range(&gone),
            Err(StoreError::Compacted { .. })
        ));
    }
}

fn check_past(machine: &Machine, model: &Model) {
    let mut expected: Vec<_> = model
        .versions
        .iter()
        .filter(|((_, revision), _)| *revision > model.compacted)
        .map(|((key, revision), version)| (*revision, key.clone(), version.clone()))
        .collect();
    expected.sort_by_key(|(revision, key, _)| (*revision, key.clone()));
    let mut seen = Vec::new();
    let mut from = model.compacted + 1;
    while from <= model.revision {
        let stretch = machine.past(from, b"", ALL, 3).unwrap();
        assert!(stretch.next > from);
        for change in stretch.changes {
            for event in &change.events {
                let version = (event.kind == EventKind::Put).then(|| event.kv.clone());
                assert_eq!(
                    event.prev.as_ref(),
                    model.at(&event.kv.key, change.revision - 1)
                );
                seen.push((change.revision, event.kv.key.clone(), version));
            }
        }
        from = stretch.next;
    }
    seen.sort_by_key(|(revision, key, _)| (*revision, key.clone()));
    assert_eq!(seen, expected);
    if model.compacted > 0 {
        let gone = machine.past(model.compacted, b"", ALL, 3);
        assert!(matches!(gone, Err(PastError::Compacted(_))));
    }
}

const ALL: &[u8] = crate::key_value::ALL_KEYS_END;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = machine(dir.path());
        let mut model = Model::default();
        let mut index = 0;
        let mut apply = |machine: &Machine, request: Request| {
            let position = Position { term: 1, node: 1, index };
            index += 1;
            let command = Command::Requests([request].into());
            machine.apply(vec![(position, command)]).unwrap().remove(0).remove(0)
        };
        for step in steps {
            match step {
                Step::Txn(txn) => {
                    let outcome = apply(&machine, Request::Txn(txn.clone()));
                    if let Err(rejection) = validate(&txn) {
                        prop_assert_eq!(outcome, Err(rejection));
                        continue;
                    }
                    let (succeeded, deleted) = model.apply(&txn);
                    let Ok(Reply::Txn(response)) = outcome else { panic!("{outcome:?}") };
                    prop_assert_eq!((response.succeeded, response.revision), (succeeded, model.revision));
                    let counts: Vec<_> = response.responses.iter().filter_map(|response| match response {
                        OpResponse::Delete { prev } => Some(prev.len()),
                        _ => None,
                    }).collect();
                    prop_assert_eq!(counts, deleted);
                }
                Step::Compact(part) => {
                    let target = model.revision * u64::from(part) / 255;
                    let outcome = apply(&machine, Request::Compact(target));
                    if target > model.compacted {
                        prop_assert_eq!(outcome, Ok(Reply::Done));
                        model.compacted = target;
                        while machine.scrub().unwrap() {}
                    } else if model.compacted > 0 {
                        let refused = matches!(outcome, Err(Rejection::Compacted { .. }));
                        prop_assert!(refused);
                    }
                }
                Step::Checkpoint => machine.checkpoint().unwrap(),
                Step::Reopen => {
                    machine.checkpoint().unwrap();
                    let applied = machine.applied_next();
                    drop(machine);
                    machine = self::machine(dir.path());
                    prop_assert_eq!(machine.applied_next(), applied);
                }
            }
            prop_assert_eq!((machine.revision(), machine.compacted()), (model.revision, model.compacted));
        }
        check_reads(&machine, &model);
        check_past(&machine, &model);
    }
}

/// A crash forgets what came after the checkpoint, all of it and nothing else.
#[test]
fn a_crash_goes_back_to_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let machine = machine(dir.path());
    let put = |index: u64| {
        let position = Position {
            term: 1,
            node: 1,
            index,
        };
        let txn = Txn {
            success: vec![Op::put(format!("k{index}"), vec![7; 3000])],
            ..Txn::default()
        };
        let command = Command::Requests([Request::Txn(txn)].into());
        machine.apply(vec![(position, command)]).unwrap();
    };
    (0..20).for_each(put);
    machine.checkpoint().unwrap();
    // More than the cache holds, so that pages are written without a sync.
    (20..1_000).for_each(put);
    // What is in the file now is what a crash leaves, at best.
    std::fs::copy(machine.path(), copy.path().join("state.redb")).unwrap();
    let recovered = self::machine(copy.path());
    assert_eq!((recovered.revision(), recovered.applied_next()), (20, 20));
    assert!(recovered.get(b"k19").unwrap().is_some());
    assert!(recovered.get(b"k20").unwrap().is_none());
}

#[test]
fn a_snapshot_replaces_everything() {
    let (from_dir, to_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (machine(from_dir.path()), machine(to_dir.path()));
    let apply = |machine: &Machine, index: u64, request: Request| {
        let position = Position {
            term: 1,
            node: 1,
            index,
        };
        machine
            .apply(vec![(position, Command::Requests([request].into()))])
            .unwrap();
    };
    let put = |key: &'static str| {
        Request::Txn(Txn {
            success: vec![Op::put(key, "x")],
            ..Txn::default()
        })
    };
    apply(&to, 0, put("old"));
    for (index, key) in ["a", "b", "a"].into_iter().enumerate() {
        apply(&from, index as u64, put(key));
    }
    apply(
        &from,
        3,
        Request::LeaseGrant {
            id: 9,
            ttl_millis: 1000,
        },
    );
    to.install(&from.view().unwrap()).unwrap();
    assert_eq!(
        (to.revision(), to.applied_next(), to.durable_next()),
        (3, 4, 4)
    );
    assert_eq!(to.get(b"old").unwrap(), None);
    assert_eq!(to.get(b"a").unwrap(), from.get(b"a").unwrap());
    assert_eq!(to.past(1, b"", ALL, 10).unwrap().changes.len(), 3);
    assert_eq!(to.leases().lock().len(), 1);
}
