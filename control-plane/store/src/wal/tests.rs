//! Recovery of the log: whatever a crash cuts off, and whatever a disk flips.

use proptest::prelude::*;

use super::frame::Payload;
use super::*;

fn entry(index: u64) -> Entry {
    let length = usize::try_from(index * 7 % 40).unwrap();
    Entry {
        position: Position {
            term: 1,
            node: 1,
            index,
        },
        payload: match index % 5 {
            0 => Payload::Blank,
            1 => Payload::Membership(vec![b'm'; length].into()),
            _ => Payload::Requests(vec![u8::try_from(index % 251).unwrap(); length].into()),
        },
    }
}

fn position(index: u64) -> Position {
    entry(index).position
}

fn all(wal: &Wal) -> Vec<u64> {
    let entries = wal.read(0, u64::MAX, usize::MAX).unwrap();
    for read in &entries {
        assert_eq!(*read, entry(read.position.index));
    }
    entries.iter().map(|entry| entry.position.index).collect()
}

fn reopen(dir: &Path) -> Result<Wal, StoreError> {
    Wal::open(dir, 300, false)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// Entries 0..count, in frames of one to three.
fn fill(wal: &mut Wal, mut from: u64, count: u64) {
    while from < count {
        let until = (from + 1 + from % 3).min(count);
        wal.append((from..until).map(entry).collect()).unwrap();
        wal.sync_target().sync().unwrap();
        from = until;
    }
}

#[test]
fn everything_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut wal = reopen(dir.path()).unwrap();
    assert_eq!((wal.last(), wal.purged(), wal.vote()), (None, None, None));
    let vote = Vote {
        term: 3,
        node: 1,
        committed: true,
    };
    wal.save_vote(vote).unwrap();
    fill(&mut wal, 0, 50);
    assert!(files(dir.path()).len() > 3, "several segments");
    assert_eq!(all(&wal), (0..50).collect::<Vec<_>>());
    assert_eq!(wal.read(10, 13, usize::MAX).unwrap().len(), 3);
    assert_eq!(
        wal.read(10, 50, 1).unwrap()[0].position.index,
        10,
        "at least one"
    );
    drop(wal);
    let wal = reopen(dir.path()).unwrap();
    assert_eq!(wal.vote(), Some(vote), "though its segment is not the last");
    assert_eq!(wal.last(), Some(position(49)));
    assert_eq!(all(&wal), (0..50).collect::<Vec<_>>());
}

#[test]
fn truncation_and_purge_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut wal = reopen(dir.path()).unwrap();
    wal.set_committed(Some(7));
    fill(&mut wal, 0, 50);
    wal.truncate(40).unwrap();
    fill(&mut wal, 40, 45);
    let before = files(dir.path()).len();
    wal.purge(position(29)).unwrap();
    assert!(files(dir.path()).len() < before);
    for _ in 0..2 {
        assert_eq!(all(&wal), (30..45).collect::<Vec<_>>());
        assert_eq!(wal.purged(), Some(position(29)));
        assert_eq!(wal.committed(), Some(position(29)));
        assert_eq!(wal.last(), Some(position(44)));
        drop(wal);
        wal = reopen(dir.path()).unwrap();
    }
    // A snapshot from elsewhere may lie beyond the whole log.
    wal.purge(position(100)).unwrap();
    for _ in 0..2 {
        assert_eq!(all(&wal), Vec::<u64>::new());
        assert_eq!(
            (wal.purged(), wal.last()),
            (Some(position(100)), Some(position(100)))
        );
        drop(wal);
        wal = reopen(dir.path()).unwrap();
    }
    wal.append(vec![entry(101)]).unwrap();
    assert_eq!(all(&reopen(dir.path()).unwrap()), [101]);
    wal.truncate(101).unwrap();
    wal.append(vec![entry(101)]).unwrap();
    assert_eq!(all(&reopen(dir.path()).unwrap()), [101]);
}

#[test]
fn a_missing_segment_is_refused() {
    for missing in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut wal = reopen(dir.path()).unwrap();
        fill(&mut wal, 0, 20);
        wal.purge(position(1)).unwrap();
        fill(&mut wal, 20, 50);
        drop(wal);
        fs::remove_file(&files(dir.path())[missing]).unwrap();
        let refused = reopen(dir.path());
        assert!(
            matches!(refused, Err(StoreError::Corrupt { .. })),
            "{missing}: {refused:?}"
        );
    }
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(reopen(dir.path()).unwrap());
    let path = &files(dir.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[8..12]);
    let crc = crc32c::crc32c_append(crc, &bytes[12..16]);
    let crc = crc32c::crc32c_append(crc, &bytes[20..]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, bytes).unwrap();
    let refused = reopen(dir.path());
    assert!(
        matches!(refused, Err(StoreError::FormatTooNew { found: 2, .. })),
        "{refused:?}"
    );
}

#[test]
fn a_torn_first_creation_is_repeated() {
    for length in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        drop(reopen(dir.path()).unwrap());
        let path = files(dir.path())[0].clone();
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..length.min(bytes.len() - 1)]).unwrap();
        let mut wal = reopen(dir.path()).unwrap();
        fill(&mut wal, 0, 3);
        assert_eq!(all(&reopen(dir.path()).unwrap()), [0, 1, 2]);
    }
}

#[test]
fn salvage_keeps_what_precedes_the_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut wal = reopen(dir.path()).unwrap();
    fill(&mut wal, 0, 50);
    drop(wal);
    let path = files(dir.path())[2].clone();
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(&path, bytes).unwrap();
    reopen(dir.path()).unwrap_err();
    let mut wal = Wal::open(dir.path(), 300, true).unwrap();
    let kept = all(&wal);
    assert!(kept.len() > 10 && kept.len() < 40, "{kept:?}");
    let next = kept.last().unwrap() + 1;
    fill(&mut wal, next, 60);
    drop(wal);
    assert_eq!(
        all(&reopen(dir.path()).unwrap()),
        (0..60).collect::<Vec<_>>()
    );
    assert!(
        files(dir.path())
            .iter()
            .any(|path| path.extension().unwrap() == "damaged")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The last segment ends at any byte: every frame before is there, and the log goes on.
    #[test]
    fn a_torn_tail_costs_only_itself(count in 1_u64..40, cut in any::<prop::sample::Index>()) {
        let dir = tempfile::tempdir().unwrap();
        let mut wal = reopen(dir.path()).unwrap();
        fill(&mut wal, 0, count);
        let last_segment = wal.active_number();
        let starts: Vec<_> = wal.locations.iter()
            .filter(|at| at.segment == last_segment)
            .map(|at| (at.offset, at.position.index))
            .collect();
        drop(wal);
        let path = segment_path(dir.path(), last_segment);
        let length = fs::read(&path).unwrap().len();
        let cut = cut.index(length + 1);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut as u64).unwrap();
        // Entries survive when the frame after theirs starts at or before the cut.
        let first_lost = starts.iter()
            .filter(|(offset, _)| {
                let end = starts.iter().map(|(next, _)| *next).find(|next| next > offset);
                end.unwrap_or(length as u64) > cut as u64
            })
            .map(|(_, index)| *index)
            .min()
            .unwrap_or(count);
        let mut wal = reopen(dir.path()).unwrap();
        prop_assert_eq!(all(&wal), (0..first_lost).collect::<Vec<_>>());
        fill(&mut wal, first_lost, count + 5);
        drop(wal);
        prop_assert_eq!(all(&reopen(dir.path()).unwrap()), (0..count + 5).collect::<Vec<_>>());
    }

    /// Any byte of any segment is flipped: either it is refused with the file's name, or only
    /// the very last frame, which looks torn, is gone. Never anything wrong is read.
    #[test]
    fn a_flipped_byte_is_noticed(
        count in 1_u64..40,
        segment in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut wal = reopen(dir.path()).unwrap();
        fill(&mut wal, 0, count);
        let newest = *wal.locations.back().unwrap();
        let last_frame: Vec<_> = wal.locations.iter()
            .filter(|at| (at.segment, at.offset) == (newest.segment, newest.offset))
            .map(|at| at.position.index)
            .collect();
        drop(wal);
        let paths = files(dir.path());
        let path = &paths[segment.index(paths.len())];
        let mut bytes = fs::read(path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        fs::write(path, &bytes).unwrap();
        match reopen(dir.path()) {
            Ok(wal) => {
                prop_assert_eq!(all(&wal), (0..last_frame[0]).collect::<Vec<_>>());
                prop_assert_eq!(path, paths.last().unwrap());
                prop_assert!(at as u64 >= newest.offset);
            }
            Err(StoreError::Corrupt { path: named, offset, .. }) => {
                prop_assert_eq!(&named, path);
                prop_assert!(offset.unwrap() <= at as u64);
                prop_assert_eq!(fs::read(path).unwrap(), bytes, "a refusal changes nothing");
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
