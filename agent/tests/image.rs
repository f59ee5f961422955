//! The image store end to end: import in every form, pull, names, collection.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pintle_agent::image::{
    Digest, ImageConfig, ImageError, ImageStore, Mirror, Progress, ProgressFn, PullRequest,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn quiet() -> ProgressFn {
    Arc::new(|_: Progress| {})
}

#[expect(clippy::print_stdout, reason = "says why a test did nothing")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: not root");
    }
    root
}

/// A two-layer image: the second hides `/old` and replaces `/greeting`.
struct Image {
    layers: Vec<Vec<u8>>,
    plain: Vec<Vec<u8>>,
    config: Vec<u8>,
    manifest: Vec<u8>,
}

fn tar_of(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content.as_bytes())
            .unwrap();
    }
    tar.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn image(mark: &str) -> Image {
    let plain = vec![
        tar_of(&[("old", "x"), ("greeting", "first"), ("base", "shared")]),
        tar_of(&[(".wh.old", ""), ("greeting", mark)]),
    ];
    let layers: Vec<Vec<u8>> = plain.iter().map(|bytes| gzip(bytes)).collect();
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Cmd": ["/bin/sh"], "Env": ["PATH=/bin"] },
        "rootfs": {
            "type": "layers",
            "diff_ids": plain.iter().map(|bytes| Digest::of(bytes)).collect::<Vec<_>>(),
        },
    });
    let config = serde_json::to_vec(&config).unwrap();
    let descriptor = |kind: &str, bytes: &[u8]| {
        serde_json::json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": Digest::of(bytes), "size": bytes.len(),
        })
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", &config),
        "layers": layers.iter().map(|l| descriptor("layer.v1.tar+gzip", l)).collect::<Vec<_>>(),
    });
    Image {
        layers,
        plain,
        config,
        manifest: serde_json::to_vec(&manifest).unwrap(),
    }
}

impl Image {
    fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config, &self.manifest])
    }

    fn write_layout(&self, dir: &Path, name: &str) {
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        for blob in self.blobs() {
            fs::write(blobs.join(Digest::of(blob).hex()), blob).unwrap();
        }
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": Digest::of(&self.manifest), "size": self.manifest.len(),
            "annotations": { "org.opencontainers.image.ref.name": name },
        }]});
        fs::write(dir.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    }
}

async fn store(root: &Path, mirrors: BTreeMap<String, Vec<Mirror>>) -> ImageStore {
    ImageStore::open(ImageConfig {
        root: root.to_owned(),
        mirrors,
    })
    .await
    .unwrap()
}

fn read_lower(lowers: &[std::path::PathBuf], file: &str) -> Option<String> {
    lowers
        .iter()
        .find_map(|lower| fs::read_to_string(lower.join(file)).ok())
}

#[tokio::test]
async fn layouts_and_archives_are_imported_and_outlive_a_restart() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image("second");
    let layout = dir.path().join("layout");
    image.write_layout(&layout, "docker.io/library/demo:1");
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_dir_all(".", &layout).unwrap();
    let archive = dir.path().join("demo.tar.gz");
    fs::write(&archive, gzip(&tar.into_inner().unwrap())).unwrap();
    for (n, path) in [&layout, &archive].into_iter().enumerate() {
        let root = dir.path().join(format!("store{n}"));
        let first = store(&root, BTreeMap::new()).await;
        let records = first.import(path, quiet()).await.unwrap();
        assert_eq!(records.len(), 1);
        drop(first);
        let again = store(&root, BTreeMap::new()).await;
        let record = again.lookup("demo:1").expect("known by its short name");
        assert_eq!(record, records[0]);
        assert_eq!(record.id, Digest::of(&image.config).to_string());
        assert_eq!(record.repo_tags, ["docker.io/library/demo:1"]);
        assert!(again.lookup(&record.id).is_some());
        assert!(again.lookup(&record.repo_digests[0]).is_some());
        assert_eq!(
            record
                .config
                .config()
                .as_ref()
                .unwrap()
                .cmd()
                .as_ref()
                .unwrap(),
            &["/bin/sh"]
        );
        let rootfs = again.prepare("c1", &record.id).await.unwrap();
        assert_eq!(rootfs, again.prepare("c1", &record.id).await.unwrap());
        assert_eq!(rootfs.lowers.len(), 2);
        assert_eq!(read_lower(&rootfs.lowers, "greeting").unwrap(), "second");
        assert_eq!(read_lower(&rootfs.lowers, "base").unwrap(), "shared");
        assert!(rootfs.upper.is_dir() && rootfs.merged.is_dir());
    }
}

#[tokio::test]
async fn docker_archives_are_imported() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image("docker");
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes).unwrap();
    };
    add("config.json", &image.config);
    add("a/layer.tar", &image.plain[0]);
    add("b/layer.tar", &image.plain[1]);
    let manifest = br#"[{"Config":"config.json","RepoTags":["demo:docker","other.io/x:1"],
        "Layers":["a/layer.tar","b/layer.tar"]}]"#;
    add("manifest.json", manifest);
    let archive = dir.path().join("demo.tar");
    fs::write(&archive, tar.into_inner().unwrap()).unwrap();
    let store = store(&dir.path().join("store"), BTreeMap::new()).await;
    store.import(&archive, quiet()).await.unwrap();
    let record = store.lookup("docker.io/library/demo:docker").unwrap();
    assert_eq!(record, store.lookup("other.io/x:1").unwrap());
    let rootfs = store.prepare("c", &record.id).await.unwrap();
    assert_eq!(read_lower(&rootfs.lowers, "greeting").unwrap(), "docker");
}

#[tokio::test]
async fn bad_archives_are_refused_and_leave_nothing() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = store(&root, BTreeMap::new()).await;
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, "this is no archive at all").unwrap();
    assert!(matches!(
        store.import(&garbage, quiet()).await,
        Err(ImageError::BadArchive { .. })
    ));
    let layout = dir.path().join("layout");
    let image = image("tampered");
    image.write_layout(&layout, "demo:1");
    let layer = layout
        .join("blobs/sha256")
        .join(Digest::of(&image.layers[1]).hex());
    fs::write(layer, gzip(&image.plain[0])).unwrap();
    let error = store.import(&layout, quiet()).await.unwrap_err();
    assert!(
        matches!(error, ImageError::DigestMismatch { .. }),
        "{error}"
    );
    assert!(store.list().is_empty());
    assert_eq!(fs::read_dir(root.join("ingest")).unwrap().count(), 0);
    store.gc(&[]).await.unwrap();
    assert_eq!(fs::read_dir(root.join("blobs/sha256")).unwrap().count(), 0);
}

#[tokio::test]
async fn names_move_and_collection_keeps_what_is_used() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("store");
    let store = store(&root, BTreeMap::new()).await;
    let mut ids = Vec::new();
    for mark in ["one", "two"] {
        let layout = dir.path().join(mark);
        image(mark).write_layout(&layout, "demo:latest");
        ids.push(store.import(&layout, quiet()).await.unwrap()[0].id.clone());
    }
    assert_eq!(store.lookup("demo").unwrap().id, ids[1]);
    assert!(store.lookup(&ids[0]).unwrap().repo_tags.is_empty());
    let snapshots = || fs::read_dir(root.join("snapshots")).unwrap().count();
    assert_eq!(snapshots(), 3, "the lower layer is shared");
    let rootfs = store.prepare("running", &ids[0]).await.unwrap();
    store.remove(&ids[0]).await.unwrap();
    assert_eq!(snapshots(), 3, "a container stands on it");
    assert!(rootfs.lowers.iter().all(|lower| lower.is_dir()));
    // A list of live containers that is a little old does no harm.
    store.gc(&[]).await.unwrap();
    assert!(rootfs.upper.is_dir());
    store.release("running").await.unwrap();
    store.release("running").await.unwrap();
    assert!(store.gc(&[]).await.is_ok());
    assert_eq!(snapshots(), 2);
    store.remove("demo").await.unwrap();
    assert_eq!(snapshots(), 0);
    let missing = store.remove("demo").await;
    assert!(matches!(missing, Err(ImageError::NotFound { .. })));
}

/// A registry with one repository, `library/demo`, and its index.
struct Registry {
    address: String,
    requests: Arc<AtomicUsize>,
}

impl Registry {
    async fn serve(image: &Image, corrupt: bool) -> Self {
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [
            { "digest": Digest::of(b"other"), "size": 1,
              "platform": { "os": "linux", "architecture": "s390x" } },
            { "digest": Digest::of(&image.manifest), "size": image.manifest.len(),
              "platform": { "os": "linux", "architecture":
                if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" } } },
        ]});
        let mut content = BTreeMap::new();
        for blob in image.blobs() {
            let mut body = blob.clone();
            if corrupt && image.layers.contains(blob) {
                body.reverse();
            }
            content.insert(format!("/v2/library/demo/blobs/{}", Digest::of(blob)), body);
        }
        let manifest = format!("/v2/library/demo/manifests/{}", Digest::of(&image.manifest));
        content.insert(manifest, image.manifest.clone());
        let index = serde_json::to_vec(&index).unwrap();
        content.insert("/v2/library/demo/manifests/1".to_owned(), index);
        content.insert("/v2/".to_owned(), b"{}".to_vec());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(AtomicUsize::new(0));
        let (content, counter) = (Arc::new(content), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (content, counter) = (Arc::clone(&content), Arc::clone(&counter));
                tokio::spawn(answer(stream, content, counter));
            }
        });
        Self { address, requests }
    }

    fn mirrors(&self) -> BTreeMap<String, Vec<Mirror>> {
        let mirror = Mirror::parse(&format!("http://{}", self.address)).unwrap();
        BTreeMap::from([("docker.io".to_owned(), vec![mirror])])
    }
}

async fn answer(
    mut stream: tokio::net::TcpStream,
    content: Arc<BTreeMap<String, Vec<u8>>>,
    counter: Arc<AtomicUsize>,
) {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    counter.fetch_add(1, Ordering::Relaxed);
    let unknown =
        br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#.to_vec();
    let (status, body) = match content.get(path) {
        Some(body) => ("200 OK", body.clone()),
        None => ("404 Not Found", unknown),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let _client_gone = stream.write_all(head.as_bytes()).await;
    let _client_gone = stream.write_all(&body).await;
}

fn request(reference: impl Into<String>) -> PullRequest {
    PullRequest {
        reference: reference.into(),
        ..PullRequest::default()
    }
}

#[tokio::test]
async fn pulls_share_their_work_and_report_progress() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image("pulled");
    let registry = Registry::serve(&image, false).await;
    let store = store(&dir.path().join("store"), registry.mirrors()).await;
    let seen = Arc::new(AtomicUsize::new(0));
    let progress: ProgressFn = {
        let seen = Arc::clone(&seen);
        Arc::new(move |progress| {
            if let Progress::Unpacked { .. } = progress {
                seen.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let pulls = (0..8).map(|_| store.pull(request("demo:1"), Arc::clone(&progress)));
    let results = futures_util::future::join_all(pulls).await;
    let first = results[0].as_ref().unwrap();
    assert!(
        results
            .iter()
            .all(|result| result.as_ref().unwrap() == first)
    );
    assert_eq!(first.repo_tags, ["docker.io/library/demo:1"]);
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    // Index, manifest, config and two layers, and at most as many questions
    // about authentication.
    assert!(registry.requests.load(Ordering::Relaxed) <= 10);
    let by_address = format!(
        "{}/library/demo@{}",
        registry.address, first.manifest_digest
    );
    let second = store.pull(request(by_address), quiet()).await.unwrap();
    assert_eq!(second.id, first.id);
    assert_eq!(second.repo_digests.len(), 2);
    let rootfs = store.prepare("c", &first.id).await.unwrap();
    assert_eq!(read_lower(&rootfs.lowers, "greeting").unwrap(), "pulled");
}

#[tokio::test]
async fn failures_carry_the_registrys_words() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image("x");
    let registry = Registry::serve(&image, true).await;
    let store = store(&dir.path().join("store"), BTreeMap::new()).await;
    let missing = format!("{}/library/demo:nonesuch", registry.address);
    let error = store.pull(request(&missing), quiet()).await.unwrap_err();
    assert!(
        matches!(error, ImageError::RegistryNotFound { .. }),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        format!("failed to pull {missing:?}: manifest unknown: manifest unknown")
    );
    let corrupt = format!("{}/library/demo:1", registry.address);
    let error = store.pull(request(corrupt), quiet()).await.unwrap_err();
    assert!(
        !matches!(error, ImageError::RegistryNotFound { .. }),
        "{error:?}"
    );
    assert!(store.list().is_empty());
    let nobody = store
        .pull(request("127.0.0.1:1/x:1"), quiet())
        .await
        .unwrap_err();
    assert!(matches!(nobody, ImageError::Registry { .. }), "{nobody:?}");
    assert!(nobody.to_string().contains("refused"), "{nobody}");
    let invalid = store.pull(request("Bad Name"), quiet()).await.unwrap_err();
    assert!(matches!(invalid, ImageError::InvalidReference { .. }));
}
