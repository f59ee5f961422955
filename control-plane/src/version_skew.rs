//! Which agents a control plane of this version works with.
//!
//! Pure. Agent and server may be one minor version apart, in either direction: a cluster is
//! upgraded one minor version at a time, servers and agents in any order.

/// Version of this program.
pub(crate) const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why an agent is turned away.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SkewError {
    /// Too far apart.
    #[error(
        "the agent is pintle {agent} and the control plane pintle {server}, more than one minor version apart; upgrade the {older} first, one minor version at a time"
    )]
    TooFar {
        /// The agent's version.
        agent: String,
        /// The server's version.
        server: &'static str,
        /// Which of the two to upgrade.
        older: &'static str,
    },
    /// Not a version.
    #[error(
        "the agent does not say which version it is ({0:?}); use the pintle of the control plane, version {PROGRAM_VERSION}"
    )]
    Unknown(String),
}

/// Whether an agent of this version may work with this control plane.
pub(crate) fn check(agent: &str) -> Result<(), SkewError> {
    compare(agent, PROGRAM_VERSION)
}

fn compare(agent: &str, server: &'static str) -> Result<(), SkewError> {
    let theirs = minor(agent).ok_or_else(|| SkewError::Unknown(agent.to_owned()))?;
    let ours = minor(server).unwrap_or_default();
    if theirs.0 == ours.0 && theirs.1.abs_diff(ours.1) <= 1 {
        return Ok(());
    }
    Err(SkewError::TooFar {
        agent: agent.to_owned(),
        server,
        older: if theirs < ours {
            "agent"
        } else {
            "control plane"
        },
    })
}

/// Major and minor of `MAJOR.MINOR.PATCH`, whatever follows.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').splitn(3, '.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    parts.next().map(|_patch| (major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_minor_version_apart_is_fine_and_two_are_not() {
        for agent in ["1.4.0", "1.5.9", "v1.3.2-rc1", "1.4.0+dirty"] {
            assert_eq!(compare(agent, "1.4.1"), Ok(()), "{agent}");
        }
        let words = |agent| compare(agent, "1.4.1").unwrap_err().to_string();
        assert!(words("1.2.0").contains("upgrade the agent first"));
        assert!(words("1.6.0").contains("upgrade the control plane first"));
        assert!(words("2.4.1").contains("more than one minor version apart"));
        for bad in ["", "1", "1.4", "x.y.z"] {
            assert_eq!(
                compare(bad, "1.4.1"),
                Err(SkewError::Unknown(bad.to_owned()))
            );
        }
        check(PROGRAM_VERSION).unwrap();
    }
}
