//! kill -9 at any moment: what was acknowledged is there afterwards.
//!
//! The test starts this test binary again as a writer that prints a line per acknowledged
//! write, kills it at a random moment, reopens the directory and compares.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use rand::Rng;

use super::*;
use crate::key_value::Op;

const DIRECTORY: &str = "PINTLE_STORE_CRASH_DIR";
const WRITERS: usize = 4;
const KILLS: usize = 8;

fn config(dir: &Path) -> StoreConfig {
    StoreConfig {
        data_dir: dir.to_path_buf(),
        // Everything happens often: new segments, checkpoints, purges, compaction.
        segment_bytes: 8 << 10,
        checkpoint_bytes: 24 << 10,
        history_retention: Some(Duration::from_millis(50)),
        ..StoreConfig::default()
    }
}

/// The writer. Does nothing unless the test below started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_process() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let store = Store::open(config(Path::new(&dir))).await.unwrap();
    let start = store.revision();
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        async move {
            for at in 0_u64.. {
                let number = format!("{start}.{at}");
                let txn = Txn {
                    success: vec![
                        Op::put(format!("w{writer}"), number.clone()),
                        Op::put(format!("twin{writer}"), number.clone()),
                        Op::put(format!("fill{writer}/{}", at % 50), "x".repeat(200)),
                    ],
                    ..Txn::default()
                };
                let revision = store.txn(txn).await.unwrap().revision;
                let line = format!("ack {writer} {number} {revision}\n");
                std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
            }
        }
    });
    join_all(writers).await;
}

fn start_writer(dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::crash::writer_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIRECTORY, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn acknowledged_writes_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<String, (String, Revision)> = BTreeMap::new();
    let mut highest = 0;
    for round in 0..KILLS {
        let mut child = start_writer(dir.path());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // A random number of acknowledgements is a random moment; 0 dies while opening or at
        // the first write.
        let acks = rand::rng().random_range(0..400);
        let mut take = |line: &str| {
            let mut words = line.split(' ');
            if words.next() != Some("ack") {
                return;
            }
            let (writer, number) = (words.next().unwrap(), words.next().unwrap());
            let revision: Revision = words.next().unwrap().parse().unwrap();
            acknowledged.insert(writer.to_owned(), (number.to_owned(), revision));
            highest = highest.max(revision);
        };
        let mut seen = 0;
        while seen < acks {
            let line = lines.next().expect("the writer died by itself").unwrap();
            take(&line);
            seen += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            // A torn last line cannot happen: a line is one write.
            take(&line);
        }

        let store = Store::open(config(dir.path())).await.unwrap();
        assert!(store.revision() >= highest, "round {round}");
        for (writer, (number, revision)) in &acknowledged {
            let kv = store.get(format!("w{writer}").as_bytes()).unwrap().unwrap();
            let twin = store
                .get(format!("twin{writer}").as_bytes())
                .unwrap()
                .unwrap();
            assert_eq!(kv.mod_revision, twin.mod_revision, "transactions are whole");
            assert_eq!(kv.value, twin.value);
            assert!(
                kv.mod_revision >= *revision,
                "round {round}: {writer} lost {number}"
            );
            if kv.mod_revision == *revision {
                assert_eq!(kv.value, number.as_bytes());
            }
        }
        highest = highest.max(store.revision());
        store.shutdown().await;
    }
    assert!(highest > 0);
}
