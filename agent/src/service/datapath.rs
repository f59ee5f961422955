//! The BPF object in the kernel: programs, maps, links and their pins.
//!
//! Watches nothing. Changes the pins of this instance on bpffs:
//!
//! ```text
//! <bpffs_dir>/v<ABI>/FRONTENDS BACKENDS PEERS UDP_FLOWS …        maps
//! <bpffs_dir>/links/connect4 …                                   cgroup links
//! <bpffs_dir>/links/pod-<veth>                                   TCX links (Linux 6.6)
//! ```
//!
//! Links found pinned keep running the programs they have until [`DataPath::activate`] swaps
//! in the ones of this process, which happens when the maps are known to be right. So neither
//! a restart nor an upgrade to another map layout leaves a moment without translation. On
//! kernels before 6.6 the pod program is a clsact filter, which lives as long as the veth.
//! Who reacts next: the kernel, which runs the programs.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::links::{FdLink, LinkError};
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcAttachType, TcHandle, qdisc_add_clsact,
};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, LinkOrder, ProgramError, SchedClassifier};
use aya::sys::SyscallError;
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfError, EbpfLoader, Pod as Plain};
use parking_lot::Mutex;
use pintle_ebpf_abi::{
    Backend, BackendKey, Entry, Frontend, FrontendKey, Pod, UdpFlowKey, VERSION, map, program,
};

use super::ServiceConfig;
use super::bpffs;
use super::log::ProgramLog;
use super::table::{Op, Table};
use crate::sys::{self, bpf};

/// Owner of the host's network namespace.
const HOST: u32 = 0;

/// The compiled programs; empty when they were not compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("PINTLE_BPF_OBJECT"));

/// Whether this program has no BPF programs in it.
pub(super) fn is_built_without() -> bool {
    OBJECT.is_empty()
}

/// Why there is no data path, or why a change did not get into it.
#[derive(Debug, thiserror::Error)]
pub enum DataPathError {
    /// The program was compiled without the BPF object.
    #[error(
        "this `pintle` was built without its BPF programs, so Services have no data path; hint: build it with `cargo xtask build`"
    )]
    BuiltWithout,
    /// bpffs is not mounted and cannot be.
    #[error("cannot mount bpffs at {path}; hint: `pintle` needs to run as root")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A directory for pins cannot be made.
    #[error("cannot create {path} for pinned BPF objects")]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A pin cannot be removed.
    #[error("cannot remove {path}")]
    RemovePin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not take the object.
    #[error("cannot load the BPF programs; hint: Linux 6.1 with BPF and BTF is needed")]
    Load(#[source] Box<EbpfError>),
    /// The object lacks a program or map that this program knows.
    #[error(
        "the BPF programs in this `pintle` are older than it: they have no `{0}`; hint: build it with `cargo xtask build`"
    )]
    Missing(&'static str),
    /// The kernel does not take one program.
    #[error("cannot load the BPF program `{name}`")]
    LoadProgram {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        source: Box<ProgramError>,
    },
    /// The cgroup to attach to cannot be opened.
    #[error("cannot open the cgroup {path}; hint: cgroup v2 must be mounted")]
    OpenCgroup {
        /// Its directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program cannot be attached.
    #[error("cannot attach the BPF program `{name}` to {target}")]
    Attach {
        /// Its name.
        name: &'static str,
        /// The cgroup or interface.
        target: String,
        /// What the kernel said.
        source: Box<ProgramError>,
    },
    /// A link cannot be pinned.
    #[error("cannot pin a BPF link at {path}")]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A pinned link cannot be opened or given another program.
    #[error("cannot replace the program of the BPF link {path}")]
    ReplaceLink {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The network namespace cannot be identified.
    #[error("cannot identify the network namespace")]
    Namespace(#[source] io::Error),
    /// A map has no room for another entry.
    #[error("the BPF map {map} is full: entries for new Services or endpoints are refused")]
    MapFull {
        /// Its name.
        map: &'static str,
    },
    /// A map cannot be read or written.
    #[error("cannot access the BPF map {map}")]
    Map {
        /// Its name.
        map: &'static str,
        /// What the kernel said.
        source: Box<MapError>,
    },
}

/// One pod's way into the data path.
#[derive(Clone, Debug)]
pub struct PodLink {
    /// Host side of its veth, in the network namespace of the caller.
    pub interface: String,
    /// Index of that interface.
    pub ifindex: u32,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// Cookie of the pod's network namespace, where Services are to exist; `None`: as before.
    pub namespace: Option<u64>,
    /// Hardware address of the interface in the pod.
    pub pod_mac: [u8; 6],
    /// Hardware address of the host side.
    pub host_mac: [u8; 6],
}

/// The loaded object. Cheap to clone; clones are the same data path.
#[derive(Clone, Debug)]
pub struct DataPath {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bpffs_dir: PathBuf,
    cgroup: PathBuf,
    tcx: bool,
    loaded: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    log: Option<ProgramLog>,
    ebpf: Ebpf,
    maps: Maps,
}

type TypedMap<K, V> = HashMap<MapData, <K as Entry>::Bytes, <V as Entry>::Bytes>;

#[derive(Debug)]
struct Maps {
    frontends: TypedMap<FrontendKey, Frontend>,
    backends: TypedMap<BackendKey, Backend>,
    udp_flows: TypedMap<UdpFlowKey, Backend>,
    pods: HashMap<MapData, u32, <Pod as Entry>::Bytes>,
    namespaces: HashMap<MapData, u64, u32>,
}

impl Maps {
    /// Makes `namespace` the one of its owner, and no other.
    fn set_namespace(&mut self, owner: u32, namespace: u64) -> Result<(), DataPathError> {
        self.namespaces
            .insert(namespace, owner, 0)
            .map_err(|source| map_error(map::NAMESPACES, source))?;
        self.remove_namespaces(owner, Some(namespace))
    }

    fn remove_namespaces(&mut self, owner: u32, keep: Option<u64>) -> Result<(), DataPathError> {
        for (namespace, other) in collect(map::NAMESPACES, self.namespaces.iter())? {
            if other == owner
                && Some(namespace) != keep
                && let Err(source) = self.namespaces.remove(&namespace)
                && !is_not_found(&source)
            {
                return Err(map_error(map::NAMESPACES, source));
            }
        }
        Ok(())
    }

    fn remove_pod(&mut self, address: u32) -> Result<(), DataPathError> {
        self.remove_namespaces(address, None)?;
        match self.pods.remove(&address) {
            Err(source) if !is_not_found(&source) => Err(map_error(map::PODS, source)),
            _ => Ok(()),
        }
    }
}

impl DataPath {
    /// Loads the object, adopting what is pinned under [`ServiceConfig::bpffs_dir`], and
    /// attaches what is not attached yet.
    pub fn open(config: &ServiceConfig) -> Result<Self, DataPathError> {
        let tcx =
            KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0));
        Self::open_with(config, tcx)
    }

    /// As on a kernel before 6.6.
    #[cfg(test)]
    pub(crate) fn open_without_tcx(config: &ServiceConfig) -> Result<Self, DataPathError> {
        Self::open_with(config, false)
    }

    fn open_with(config: &ServiceConfig, tcx: bool) -> Result<Self, DataPathError> {
        if is_built_without() {
            return Err(DataPathError::BuiltWithout);
        }
        bpffs::mount_for(&config.bpffs_dir)?;
        let maps_dir = config.bpffs_dir.join(format!("v{VERSION}"));
        let links_dir = config.bpffs_dir.join("links");
        for path in [&maps_dir, &links_dir] {
            std::fs::create_dir_all(path).map_err(|source| DataPathError::CreateDirectory {
                path: path.clone(),
                source,
            })?;
        }
        let mut ebpf = EbpfLoader::new()
            .default_map_pin_directory(&maps_dir)
            .load(OBJECT)
            .map_err(|source| DataPathError::Load(Box::new(source)))?;
        let log = ProgramLog::of(&mut ebpf);
        let mut maps = Maps {
            frontends: take(&mut ebpf, map::FRONTENDS)?,
            backends: take(&mut ebpf, map::BACKENDS)?,
            udp_flows: take(&mut ebpf, map::UDP_FLOWS)?,
            pods: take(&mut ebpf, map::PODS)?,
            namespaces: take(&mut ebpf, map::NAMESPACES)?,
        };
        maps.set_namespace(HOST, own_namespace()?)?;
        let pod_program = pod_program(&mut ebpf)?;
        pod_program
            .load()
            .map_err(|source| DataPathError::LoadProgram {
                name: program::POD_EGRESS,
                source: Box::new(source),
            })?;
        for name in program::CGROUP {
            cgroup_program(&mut ebpf, name)?.load().map_err(|source| {
                DataPathError::LoadProgram {
                    name,
                    source: Box::new(source),
                }
            })?;
        }
        let data_path = Self {
            inner: Arc::new(Inner {
                bpffs_dir: config.bpffs_dir.clone(),
                cgroup: config.attach_cgroup.clone(),
                tcx,
                loaded: Mutex::new(Loaded { log, ebpf, maps }),
            }),
        };
        data_path.attach_cgroup(false)?;
        Ok(data_path)
    }

    /// What the programs write, when they are built to; once.
    pub(super) fn take_log(&self) -> Option<ProgramLog> {
        self.inner.loaded.lock().log.take()
    }

    /// Lets all adopted links run this process's programs, and drops maps of other versions.
    pub(super) fn activate(&self) -> Result<(), DataPathError> {
        self.attach_cgroup(true)?;
        let current = format!("v{VERSION}");
        for entry in std::fs::read_dir(&self.inner.bpffs_dir)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            if name != *current && name.to_string_lossy().starts_with('v') {
                bpffs::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Attaches every cgroup program that has no live pinned link; with `replace`, the links
    /// that are there get this process's program.
    fn attach_cgroup(&self, replace: bool) -> Result<(), DataPathError> {
        let Inner { cgroup, .. } = &*self.inner;
        let directory = File::open(cgroup).map_err(|source| DataPathError::OpenCgroup {
            path: cgroup.clone(),
            source,
        })?;
        let number = directory
            .metadata()
            .map_err(|source| DataPathError::OpenCgroup {
                path: cgroup.clone(),
                source,
            })?
            .ino();
        let mut loaded = self.inner.loaded.lock();
        for name in program::CGROUP {
            let pin = self.link_pin(name);
            let program = cgroup_program(&mut loaded.ebpf, name)?;
            if pin.exists() && link_cgroup(&pin) != Some(number) {
                // The cgroup it was on is gone, or the configuration names another one.
                remove_pin(&pin)?;
            }
            if pin.exists() {
                if !replace {
                    continue;
                }
                let fd = program.fd().map_err(|source| DataPathError::LoadProgram {
                    name,
                    source: Box::new(source),
                })?;
                if replace_program(&pin, fd.as_fd())? {
                    continue;
                }
            }
            let attach = |source| DataPathError::Attach {
                name,
                target: cgroup.display().to_string(),
                source: Box::new(source),
            };
            // "Single" is no flags: a link always shares the hook with other programs, and the
            // kernel refuses to be told so.
            let id = program
                .attach(&directory, CgroupAttachMode::Single)
                .map_err(attach)?;
            let link = program.take_link(id).map_err(attach)?;
            let link: FdLink = link.try_into().map_err(|source| link_error(&pin, source))?;
            pin_link(link, &pin)?;
        }
        Ok(())
    }

    fn link_pin(&self, name: &str) -> PathBuf {
        self.inner.bpffs_dir.join("links").join(name)
    }

    /// Puts a pod on the fast path: other pods of this node reach it directly, and what it
    /// sends is checked. Repeating it is harmless and renews the program.
    pub fn attach_pod(&self, pod: &PodLink) -> Result<(), DataPathError> {
        let mut loaded = self.inner.loaded.lock();
        let entry = Pod {
            ifindex: pod.ifindex,
            identity: 0,
            pod_mac: pod.pod_mac,
            host_mac: pod.host_mac,
        };
        loaded
            .maps
            .pods
            .insert(wire(pod.address), entry.to_bytes(), 0)
            .map_err(|source| map_error(map::PODS, source))?;
        if let Some(namespace) = pod.namespace {
            loaded.maps.set_namespace(wire(pod.address), namespace)?;
        }
        let program = pod_program(&mut loaded.ebpf)?;
        if self.inner.tcx {
            self.attach_tcx(program, pod)
        } else {
            attach_clsact(program, pod)
        }
    }

    fn attach_tcx(
        &self,
        program: &mut SchedClassifier,
        pod: &PodLink,
    ) -> Result<(), DataPathError> {
        let attach = |source| attach_error(pod, source);
        let pin = self.pod_pin(&pod.interface);
        if pin.exists() {
            let fd = program.fd().map_err(attach)?;
            if tcx_ifindex(&pin) == Some(pod.ifindex) && replace_program(&pin, fd.as_fd())? {
                return Ok(());
            }
            // The interface it was for is gone, or another one has its name now.
            remove_pin(&pin)?;
        }
        let id = program
            .attach_with_options(
                &pod.interface,
                TcAttachType::Ingress,
                TcAttachOptions::TcxOrder(LinkOrder::default()),
            )
            .map_err(attach)?;
        let link = program.take_link(id).map_err(attach)?;
        let link: FdLink = link.try_into().map_err(|source| link_error(&pin, source))?;
        pin_link(link, &pin)
    }

    fn pod_pin(&self, interface: &str) -> PathBuf {
        self.link_pin(&format!("pod-{interface}"))
    }

    /// Takes a pod off the fast path. The program of its veth goes with the veth or here,
    /// whichever comes first.
    pub fn detach_pod(&self, interface: &str, address: Ipv4Addr) -> Result<(), DataPathError> {
        let mut loaded = self.inner.loaded.lock();
        loaded.maps.remove_pod(wire(address))?;
        remove_pin(&self.pod_pin(interface))
    }

    /// Removes map entries and link pins of pods other than `live` (interface, address).
    pub fn retain_pods(&self, live: &[(String, Ipv4Addr)]) -> Result<(), DataPathError> {
        let mut loaded = self.inner.loaded.lock();
        let keep: Vec<u32> = live.iter().map(|(_, address)| wire(*address)).collect();
        let known = collect(map::PODS, loaded.maps.pods.keys())?;
        for address in known.into_iter().filter(|key| !keep.contains(key)) {
            loaded.maps.remove_pod(address)?;
        }
        let known = collect(map::NAMESPACES, loaded.maps.namespaces.iter())?;
        for (_, owner) in known {
            if owner != HOST && !keep.contains(&owner) {
                loaded.maps.remove_pod(owner)?;
            }
        }
        let keep: Vec<PathBuf> = live.iter().map(|(name, _)| self.pod_pin(name)).collect();
        let links = std::fs::read_dir(self.inner.bpffs_dir.join("links"));
        for entry in links.into_iter().flatten().flatten() {
            let path = entry.path();
            let is_pod = entry.file_name().to_string_lossy().starts_with("pod-");
            if is_pod && !keep.contains(&path) {
                remove_pin(&path)?;
            }
        }
        Ok(())
    }

    /// The pods on the fast path.
    pub fn pods(&self) -> Result<Vec<(Ipv4Addr, u32)>, DataPathError> {
        let loaded = self.inner.loaded.lock();
        let pods = collect(map::PODS, loaded.maps.pods.iter())?;
        Ok(pods
            .into_iter()
            .map(|(address, pod)| {
                (
                    Ipv4Addr::from(address.to_ne_bytes()),
                    Pod::from_bytes(pod).ifindex,
                )
            })
            .collect())
    }

    /// The table of what the maps hold.
    pub(super) fn read_table(&self) -> Result<Table, DataPathError> {
        let loaded = self.inner.loaded.lock();
        let frontends = collect(map::FRONTENDS, loaded.maps.frontends.iter())?;
        let backends = collect(map::BACKENDS, loaded.maps.backends.iter())?;
        Ok(Table::adopt(
            frontends
                .into_iter()
                .map(|(key, value)| (FrontendKey::from_bytes(key), Frontend::from_bytes(value))),
            backends
                .into_iter()
                .map(|(key, value)| (BackendKey::from_bytes(key), Backend::from_bytes(value))),
        ))
    }

    /// Performs one write.
    pub(super) fn write(&self, op: &Op) -> Result<(), DataPathError> {
        let mut loaded = self.inner.loaded.lock();
        let maps = &mut loaded.maps;
        match op {
            Op::PutBackend(key, value) => maps
                .backends
                .insert(key.to_bytes(), value.to_bytes(), 0)
                .map_err(|source| map_error(map::BACKENDS, source)),
            Op::PutFrontend(key, value) => maps
                .frontends
                .insert(key.to_bytes(), value.to_bytes(), 0)
                .map_err(|source| map_error(map::FRONTENDS, source)),
            Op::RemoveFrontend(key) => match maps.frontends.remove(&key.to_bytes()) {
                Err(source) if !is_not_found(&source) => Err(map_error(map::FRONTENDS, source)),
                _ => Ok(()),
            },
            Op::RemoveBackend(key) => match maps.backends.remove(&key.to_bytes()) {
                Err(source) if !is_not_found(&source) => Err(map_error(map::BACKENDS, source)),
                _ => Ok(()),
            },
        }
    }

    /// Lets UDP sockets choose anew where their backend is gone.
    pub(super) fn forget_udp_flows(
        &self,
        is_valid: impl Fn(&UdpFlowKey, Backend) -> bool,
    ) -> Result<(), DataPathError> {
        let mut loaded = self.inner.loaded.lock();
        let flows = collect(map::UDP_FLOWS, loaded.maps.udp_flows.iter())?;
        for (key, value) in flows {
            if is_valid(&UdpFlowKey::from_bytes(key), Backend::from_bytes(value)) {
                continue;
            }
            if let Err(source) = loaded.maps.udp_flows.remove(&key)
                && !is_not_found(&source)
            {
                return Err(map_error(map::UDP_FLOWS, source));
            }
        }
        Ok(())
    }
}

/// The namespace of the calling thread, which is the host's.
fn own_namespace() -> Result<u64, DataPathError> {
    let cookie = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(sys::netns::cookie);
    cookie.map_err(DataPathError::Namespace)
}

/// clsact (before Linux 6.6): one filter of fixed priority and handle, replaced in place. It
/// goes with the interface.
fn attach_clsact(program: &mut SchedClassifier, pod: &PodLink) -> Result<(), DataPathError> {
    const PRIORITY: u16 = 1;
    const HANDLE: TcHandle = TcHandle::new(0, 1);
    let attach = |source| attach_error(pod, source);
    // Fails when the qdisc is there already; if it is not, attaching says so.
    if let Err(error) = qdisc_add_clsact(&pod.interface) {
        tracing::debug!(interface = pod.interface, %error, "clsact not added");
    }
    let existing = SchedClassifierLink::attached(
        &pod.interface,
        TcAttachType::Ingress,
        PRIORITY,
        HANDLE,
        None,
    );
    if let Ok(existing) = existing
        && let Ok(id) = program.attach_to_link(existing)
    {
        std::mem::forget(program.take_link(id).map_err(attach)?);
        return Ok(());
    }
    let id = program
        .attach_with_options(
            &pod.interface,
            TcAttachType::Ingress,
            TcAttachOptions::Netlink(NlOptions {
                priority: PRIORITY,
                handle: HANDLE,
                classid: None,
            }),
        )
        .map_err(attach)?;
    // Dropping the link would remove the filter.
    std::mem::forget(program.take_link(id).map_err(attach)?);
    Ok(())
}

/// Removes an instance's pins, which ends its data path.
pub(super) fn remove_pins(bpffs_dir: &Path) -> Result<(), DataPathError> {
    // Links first, so that no program runs on maps that are going.
    bpffs::remove(&bpffs_dir.join("links"))?;
    bpffs::remove(bpffs_dir)?;
    bpffs::unmount_own(bpffs_dir);
    Ok(())
}

fn wire(address: Ipv4Addr) -> u32 {
    super::desired::wire(address)
}

fn take<K: Plain, V: Plain>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<HashMap<MapData, K, V>, DataPathError> {
    let map = ebpf.take_map(name).ok_or(DataPathError::Missing(name))?;
    HashMap::try_from(map).map_err(|source| map_error(name, source))
}

fn pod_program(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier, DataPathError> {
    ebpf.program_mut(program::POD_EGRESS)
        .and_then(|program| program.try_into().ok())
        .ok_or(DataPathError::Missing(program::POD_EGRESS))
}

fn cgroup_program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut CgroupSockAddr, DataPathError> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(DataPathError::Missing(name))
}

fn collect<T>(
    map: &'static str,
    items: impl Iterator<Item = Result<T, MapError>>,
) -> Result<Vec<T>, DataPathError> {
    items
        .collect::<Result<_, _>>()
        .map_err(|source| map_error(map, source))
}

fn map_error(map: &'static str, source: MapError) -> DataPathError {
    match os_error(&source) {
        Some(libc::E2BIG | libc::ENOSPC) => DataPathError::MapFull { map },
        _ => DataPathError::Map {
            map,
            source: Box::new(source),
        },
    }
}

fn os_error(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(SyscallError { io_error, .. }) => io_error.raw_os_error(),
        _ => None,
    }
}

fn is_not_found(error: &MapError) -> bool {
    matches!(error, MapError::KeyNotFound) || os_error(error) == Some(libc::ENOENT)
}

fn attach_error(pod: &PodLink, source: ProgramError) -> DataPathError {
    DataPathError::Attach {
        name: program::POD_EGRESS,
        target: pod.interface.clone(),
        source: Box::new(source),
    }
}

fn link_error(pin: &Path, source: LinkError) -> DataPathError {
    DataPathError::Pin {
        path: pin.to_owned(),
        source: Box::new(source),
    }
}

fn pin_link(link: FdLink, pin: &Path) -> Result<(), DataPathError> {
    link.pin(pin)
        .map(drop)
        .map_err(|source| DataPathError::Pin {
            path: pin.to_owned(),
            source: Box::new(source),
        })
}

fn remove_pin(pin: &Path) -> Result<(), DataPathError> {
    match std::fs::remove_file(pin) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DataPathError::RemovePin {
            path: pin.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

/// The interface a pinned TCX link is on; `None` when it is on none any more.
fn tcx_ifindex(pin: &Path) -> Option<u32> {
    let fd = bpf::obj_get(pin).ok()?;
    bpf::link_ifindex(fd.as_fd())
        .ok()
        .filter(|index| *index != 0)
}

/// The number of the cgroup a pinned link is on.
fn link_cgroup(pin: &Path) -> Option<u64> {
    let fd = bpf::obj_get(pin).ok()?;
    bpf::link_cgroup(fd.as_fd()).ok()
}

/// Gives the pinned link another program; false, with the pin removed, when what the link was
/// attached to is gone.
fn replace_program(
    pin: &Path,
    program: std::os::fd::BorrowedFd<'_>,
) -> Result<bool, DataPathError> {
    let update = || {
        let link = bpf::obj_get(pin)?;
        bpf::link_update(link.as_fd(), program)
    };
    match update() {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {
            remove_pin(pin)?;
            Ok(false)
        }
        Err(source) => Err(DataPathError::ReplaceLink {
            path: pin.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests;
