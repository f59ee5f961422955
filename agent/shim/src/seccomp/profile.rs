//! Profile files in Docker's JSON form (`localhostProfile`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule,
};
use serde::Deserialize;

use super::{Filters, Rules, SeccompError, compile, names};
use crate::caps::Caps;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    #[serde(default)]
    names: Vec<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Vec<Argument>,
    #[serde(default)]
    includes: Condition,
    #[serde(default)]
    excludes: Condition,
}

#[derive(Default, Deserialize)]
struct Condition {
    #[serde(default)]
    caps: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

fn action(path: &str, name: &str, errno: Option<u32>) -> Result<SeccompAction, SeccompError> {
    Ok(match name {
        "SCMP_ACT_ALLOW" => SeccompAction::Allow,
        "SCMP_ACT_ERRNO" => SeccompAction::Errno(errno.unwrap_or(libc::EPERM.cast_unsigned())),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => SeccompAction::KillThread,
        "SCMP_ACT_KILL_PROCESS" => SeccompAction::KillProcess,
        "SCMP_ACT_LOG" => SeccompAction::Log,
        "SCMP_ACT_TRAP" => SeccompAction::Trap,
        "SCMP_ACT_TRACE" => SeccompAction::Trace(errno.unwrap_or_default()),
        other => {
            return Err(SeccompError::Action {
                path: path.to_owned(),
                action: other.to_owned(),
            });
        }
    })
}

fn conditions(path: &str, args: &[Argument]) -> Result<Vec<SeccompCondition>, SeccompError> {
    args.iter()
        .map(|arg| {
            let (op, value) = match arg.op.as_str() {
                "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, arg.value),
                "SCMP_CMP_NE" => (SeccompCmpOp::Ne, arg.value),
                "SCMP_CMP_LT" => (SeccompCmpOp::Lt, arg.value),
                "SCMP_CMP_LE" => (SeccompCmpOp::Le, arg.value),
                "SCMP_CMP_GT" => (SeccompCmpOp::Gt, arg.value),
                "SCMP_CMP_GE" => (SeccompCmpOp::Ge, arg.value),
                "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(arg.value), arg.value_two),
                other => {
                    return Err(SeccompError::Action {
                        path: path.to_owned(),
                        action: other.to_owned(),
                    });
                }
            };
            Ok(SeccompCondition::new(
                arg.index,
                SeccompCmpArgLen::Qword,
                op,
                value,
            )?)
        })
        .collect()
}

/// Whether `SECCOMP_RET_*` of `a` wins over that of `b` when filters stack.
fn strictness(action: &SeccompAction) -> u8 {
    match action {
        SeccompAction::KillProcess => 6,
        SeccompAction::KillThread => 5,
        SeccompAction::Trap => 4,
        SeccompAction::Errno(_) => 3,
        SeccompAction::Trace(_) => 2,
        SeccompAction::Log => 1,
        SeccompAction::Allow => 0,
    }
}

/// A compiled filter knows two actions, so a profile with more becomes one
/// filter per action, each allowing what the others decide; the kernel takes
/// the strictest answer.
pub(super) fn load(path: &Path, caps: Caps) -> Result<Filters, SeccompError> {
    let shown = path.display().to_string();
    let text = fs::read(path).map_err(|source| SeccompError::Read {
        path: shown.clone(),
        source,
    })?;
    let profile: Profile = serde_json::from_slice(&text).map_err(|source| SeccompError::Parse {
        path: shown.clone(),
        source,
    })?;
    let default = action(&shown, &profile.default_action, profile.default_errno_ret)?;
    let mut by_action: Vec<(SeccompAction, Rules)> = Vec::new();
    for group in &profile.syscalls {
        let applies = group.includes.caps.iter().all(|cap| caps.contains(cap))
            && !group.excludes.caps.iter().any(|cap| caps.contains(cap));
        if !applies {
            continue;
        }
        let decision = action(&shown, &group.action, group.errno_ret)?;
        if decision == default {
            continue;
        }
        if !by_action.iter().any(|(known, _)| *known == decision) {
            by_action.push((decision.clone(), BTreeMap::new()));
        }
        let Some((_, rules)) = by_action.iter_mut().find(|(known, _)| *known == decision) else {
            continue;
        };
        for number in group.names.iter().filter_map(|name| names::number(name)) {
            let conditions = conditions(&shown, &group.args)?;
            if conditions.is_empty() {
                rules.insert(number, Vec::new());
            } else if rules.get(&number).is_none_or(|present| !present.is_empty()) {
                rules
                    .entry(number)
                    .or_default()
                    .push(SeccompRule::new(conditions)?);
            }
        }
    }
    build(default, by_action).map(Filters)
}

fn build(
    default: SeccompAction,
    by_action: Vec<(SeccompAction, Rules)>,
) -> Result<Vec<BpfProgram>, SeccompError> {
    let mut programs = Vec::new();
    // Looser than the default: the filter that carries the default must let
    // these through, with the action of the first of them.
    let (looser, stricter): (Vec<_>, Vec<_>) = by_action
        .into_iter()
        .partition(|(action, _)| strictness(action) <= strictness(&default));
    let mut merged: Rules = BTreeMap::new();
    let loose_action = looser
        .iter()
        .map(|(action, _)| action.clone())
        .min_by_key(strictness)
        .unwrap_or(SeccompAction::Allow);
    for (_, rules) in &looser {
        for (number, list) in rules {
            merged.insert(*number, list.clone());
        }
    }
    if default != loose_action {
        programs.push(compile(merged, default, loose_action.clone())?);
    }
    for (action, rules) in looser.into_iter().chain(stricter) {
        if action != loose_action && action != SeccompAction::Allow {
            programs.push(compile(rules, SeccompAction::Allow, action)?);
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_with_three_actions_becomes_stacked_filters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.json");
        let text = r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"syscalls":[
            {"names":["read","write","no_such_call"],"action":"SCMP_ACT_ALLOW"},
            {"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":13},
            {"names":["chmod"],"action":"SCMP_ACT_KILL_PROCESS"}]}"#;
        fs::write(&path, text).unwrap();
        assert_eq!(load(&path, Caps(0)).unwrap().0.len(), 3);
        fs::write(&path, r#"{"defaultAction":"SCMP_ACT_FLY"}"#).unwrap();
        assert!(matches!(
            load(&path, Caps(0)),
            Err(SeccompError::Action { .. })
        ));
    }
}
