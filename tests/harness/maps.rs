//! Counts what a node keeps in the kernel for its Services and pods: entries of the pinned BPF
//! maps, and pinned links of pod interfaces.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use aya::maps::{HashMap, Map, MapData};
use pintle_ebpf_abi::{Backend, BackendKey, Entry, Frontend, FrontendKey, Pod, VERSION, map};

/// Entries by map, and under `links` the pins of pod interfaces. The LRU maps are left out:
/// they hold what sockets did, and forget by themselves.
pub fn entries(pins: &Path) -> BTreeMap<&'static str, usize> {
    let maps = pins.join(format!("v{VERSION}"));
    let links = fs::read_dir(pins.join("links")).into_iter().flatten();
    let pods = links
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("pod-"))
        .count();
    BTreeMap::from([
        (
            map::FRONTENDS,
            count::<FrontendKey, Frontend>(&maps, map::FRONTENDS),
        ),
        (
            map::BACKENDS,
            count::<BackendKey, Backend>(&maps, map::BACKENDS),
        ),
        (
            map::PODS,
            keys::<u32, <Pod as Entry>::Bytes>(&maps, map::PODS),
        ),
        (map::NAMESPACES, keys::<u64, u32>(&maps, map::NAMESPACES)),
        ("links", pods),
    ])
}

fn count<K: Entry, V: Entry>(maps: &Path, name: &str) -> usize
where
    K::Bytes: aya::Pod,
    V::Bytes: aya::Pod,
{
    keys::<K::Bytes, V::Bytes>(maps, name)
}

fn keys<K: aya::Pod, V: aya::Pod>(maps: &Path, name: &str) -> usize {
    let data = MapData::from_pin(maps.join(name)).expect("a pinned map");
    let map: HashMap<MapData, K, V> =
        HashMap::try_from(Map::HashMap(data)).expect("a hash map of these sizes");
    map.keys()
        .inspect(|key| assert!(key.is_ok(), "{name}: no key"))
        .count()
}
