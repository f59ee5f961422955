//! System call filters: the runtime's default allow-list and profile files.
//!
//! Pure up to [`Filters::install`]. Compiled in the container's process, so
//! the shim keeps none of it in memory.

mod names;
mod profile;

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::caps::Caps;
use crate::spec::Seccomp;
use crate::sys;

/// Why no filter could be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SeccompError {
    #[error("this processor has no default seccomp profile")]
    Architecture,
    #[error("compile seccomp filter: {0}")]
    Compile(#[from] seccompiler::BackendError),
    #[error("read seccomp profile {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("parse seccomp profile {path}: {source}")]
    Parse {
        path: String,
        source: serde_json::Error,
    },
    #[error("seccomp profile {path}: unsupported action {action:?}")]
    Action { path: String, action: String },
}

/// Compiled filters, in the order they are installed.
pub(crate) struct Filters(Vec<BpfProgram>);

impl Filters {
    /// Compiles what a container asks for.
    pub(crate) fn compile(seccomp: &Seccomp, caps: Caps) -> Result<Self, SeccompError> {
        match seccomp {
            Seccomp::Unconfined => Ok(Self(Vec::new())),
            Seccomp::RuntimeDefault => runtime_default(caps),
            Seccomp::Localhost(path) => profile::load(path, caps),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Installs them on this thread, for good.
    pub(crate) fn install(&self) -> io::Result<()> {
        self.0
            .iter()
            .try_for_each(|program| sys::install_seccomp(program))
    }
}

fn architecture() -> Result<TargetArch, SeccompError> {
    std::env::consts::ARCH
        .try_into()
        .map_err(|_unknown| SeccompError::Architecture)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(
    rules: Rules,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, SeccompError> {
    Ok(SeccompFilter::new(rules, mismatch, matched, architecture()?)?.try_into()?)
}

fn condition(
    index: u8,
    length: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, SeccompError> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(
        index, length, operator, value,
    )?])?)
}

/// Everything not listed fails with EPERM; clone3 fails with ENOSYS, so that C
/// libraries fall back to clone, whose flags a filter can see.
fn runtime_default(caps: Caps) -> Result<Filters, SeccompError> {
    const NAMESPACES: u64 = 0x7E02_0000;
    const AF_VSOCK: u64 = 40;
    let mut rules: Rules = BTreeMap::new();
    for number in names::ALWAYS.iter().chain(&names::NEWER) {
        rules.insert(*number, Vec::new());
    }
    for (capability, numbers) in names::WITH_CAPABILITY {
        if caps.contains(capability) {
            rules.extend(numbers.iter().map(|number| (*number, Vec::new())));
        }
    }
    let admin = caps.contains("SYS_ADMIN");
    rules.insert(libc::SYS_clone3, Vec::new());
    if !admin {
        let masked = SeccompCmpOp::MaskedEq(NAMESPACES);
        rules.insert(
            libc::SYS_clone,
            vec![condition(0, SeccompCmpArgLen::Qword, masked, 0)?],
        );
    }
    rules.insert(
        libc::SYS_socket,
        vec![condition(
            0,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Ne,
            AF_VSOCK,
        )?],
    );
    let personalities = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff]
        .into_iter()
        .map(|value| condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_personality, personalities);
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let mut filters = vec![compile(rules, denied, SeccompAction::Allow)?];
    // Installed last, so its ENOSYS wins over the other filter's EPERM.
    let mut absent: Rules = names::FUTURE.map(|number| (number, Vec::new())).collect();
    if !admin {
        absent.insert(libc::SYS_clone3, Vec::new());
    }
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    filters.push(compile(absent, SeccompAction::Allow, missing)?);
    Ok(Filters(filters))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_profile_compiles_with_and_without_admin() {
        let plain = Caps::of(false, &[], &[]).unwrap();
        let default = Filters::compile(&Seccomp::RuntimeDefault, plain).unwrap();
        assert_eq!(default.0.len(), 2);
        let admin = Filters::compile(&Seccomp::RuntimeDefault, Caps::ALL).unwrap();
        assert_eq!(admin.0.len(), 2);
        assert!(
            Filters::compile(&Seccomp::Unconfined, plain)
                .unwrap()
                .is_empty()
        );
    }
}
