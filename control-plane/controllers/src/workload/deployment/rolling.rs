//! The arithmetic of a rollout: how many replicas each replica set of a deployment gets next.
//! Pure; the numbers are those of Kubernetes, which people and tools rely on.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::revision;

/// How far a rolling update may leave the wished-for size in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) surge: i32,
    pub(crate) unavailable: i32,
}

/// One step: this replica set gets this size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) name: String,
    pub(crate) to: i32,
}

/// A number, or a share of `total`.
pub(crate) fn scaled(value: Option<&IntOrString>, total: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(value)) => *value,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text
                .strip_suffix('%')
                .and_then(|digits| digits.parse().ok())
                .unwrap_or(0);
            let product = percent * i64::from(total);
            let result = if round_up {
                (product + 99).div_euclid(100)
            } else {
                product.div_euclid(100)
            };
            i32::try_from(result).unwrap_or(i32::MAX)
        }
    }
}

/// The number of replicas the deployment asks for.
pub(crate) fn desired(deployment: &Deployment) -> i32 {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

/// Whether pods are replaced gradually (the default) and not all at once.
pub(crate) fn is_rolling(deployment: &Deployment) -> bool {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.type_.as_deref())
        .is_none_or(|type_| type_ == "RollingUpdate")
}

/// maxSurge and maxUnavailable as numbers: surge rounds up, unavailable rounds down, and they are
/// never both zero, because then nothing could move.
pub(crate) fn bounds(deployment: &Deployment) -> Bounds {
    let rolling = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.rolling_update.as_ref());
    if !is_rolling(deployment) {
        return Bounds {
            surge: 0,
            unavailable: 0,
        };
    }
    let replicas = desired(deployment);
    let surge = scaled(
        rolling.and_then(|rolling| rolling.max_surge.as_ref()),
        replicas,
        true,
    );
    let mut unavailable = scaled(
        rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
        replicas,
        false,
    );
    if surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    Bounds {
        surge,
        unavailable: unavailable.min(replicas),
    }
}

/// The replicas a replica set asks for.
pub(crate) fn spec_replicas(rs: &ReplicaSet) -> i32 {
    rs.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// The available replicas a replica set reports.
pub(crate) fn available_replicas(rs: &ReplicaSet) -> i32 {
    rs.status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0)
}

/// The replicas a replica set reports.
pub(crate) fn status_replicas(rs: &ReplicaSet) -> i32 {
    rs.status.as_ref().map_or(0, |status| status.replicas)
}

fn name(rs: &ReplicaSet) -> &str {
    rs.metadata.name.as_deref().unwrap_or_default()
}

fn created(rs: &ReplicaSet) -> (jiff::Timestamp, &str) {
    let at = rs
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(jiff::Timestamp::UNIX_EPOCH, |time| time.0);
    (at, name(rs))
}

/// Sorts replica sets from oldest to newest.
pub(crate) fn sort_by_creation<R: AsRef<ReplicaSet>>(sets: &mut [R]) {
    sets.sort_by(|a, b| created(a.as_ref()).cmp(&created(b.as_ref())));
}

/// The size the new replica set (which has `current`, 0 if it is yet to be made) may grow to, when
/// all replica sets together ask for `total`.
pub(crate) fn new_replicas(deployment: &Deployment, total: i32, current: i32) -> i32 {
    let replicas = desired(deployment);
    if !is_rolling(deployment) {
        return replicas;
    }
    let max_total = replicas.saturating_add(bounds(deployment).surge);
    if total >= max_total {
        return current;
    }
    current + (max_total - total).min(replicas - current)
}

/// How the old replica sets shrink in a rolling update: first the pods that are not healthy (they
/// serve no one), then healthy ones as far as availability allows.
pub(crate) fn shrink_old<R: AsRef<ReplicaSet>>(
    deployment: &Deployment,
    old: &[R],
    new: Option<&ReplicaSet>,
) -> Vec<Scale> {
    let mut old: Vec<(&ReplicaSet, i32)> = old
        .iter()
        .map(|rs| (rs.as_ref(), spec_replicas(rs.as_ref())))
        .collect();
    let old_total: i32 = old.iter().map(|(_, replicas)| replicas).sum();
    if old_total == 0 {
        return Vec::new();
    }
    let new_replicas = new.map_or(0, spec_replicas);
    let new_available = new.map_or(0, available_replicas);
    let min_available = desired(deployment) - bounds(deployment).unavailable;
    let max_scaled_down = old_total + new_replicas - min_available - (new_replicas - new_available);
    if max_scaled_down <= 0 {
        return Vec::new();
    }
    old.sort_by(|a, b| created(a.0).cmp(&created(b.0)));

    let mut cleaned = 0;
    for (rs, replicas) in &mut old {
        if cleaned >= max_scaled_down {
            break;
        }
        let unhealthy = *replicas - available_replicas(rs);
        if *replicas == 0 || unhealthy <= 0 {
            continue;
        }
        let step = unhealthy.min(max_scaled_down - cleaned);
        *replicas -= step;
        cleaned += step;
    }

    let available: i32 = old
        .iter()
        .map(|(rs, _)| available_replicas(rs))
        .sum::<i32>()
        + new_available;
    let mut allowed = (available - min_available).max(0);
    for (_, replicas) in &mut old {
        if allowed <= 0 {
            break;
        }
        let step = (*replicas).min(allowed);
        *replicas -= step;
        allowed -= step;
    }
    old.into_iter()
        .filter(|(rs, replicas)| spec_replicas(rs) != *replicas)
        .map(|(rs, to)| Scale {
            name: name(rs).to_owned(),
            to,
        })
        .collect()
}

/// Whether the new replica set is the whole deployment already.
pub(crate) fn is_saturated(deployment: &Deployment, new: Option<&ReplicaSet>) -> bool {
    let Some(rs) = new else {
        return false;
    };
    let replicas = desired(deployment);
    spec_replicas(rs) == replicas
        && revision::desired_annotation(rs) == Some(replicas)
        && available_replicas(rs) == replicas
}

/// What a change of `spec.replicas` does in the middle of (or without) a rollout: every replica set
/// with pods takes its proportional share. Also refreshes the size annotations, so a replica set
/// may appear with its own size.
pub(crate) fn scale_all<R: AsRef<ReplicaSet>>(
    deployment: &Deployment,
    old: &[R],
    new: Option<&ReplicaSet>,
) -> Vec<Scale> {
    let replicas = desired(deployment);
    let all: Vec<&ReplicaSet> = old.iter().map(AsRef::as_ref).chain(new).collect();
    let mut active: Vec<&ReplicaSet> = all
        .iter()
        .copied()
        .filter(|rs| spec_replicas(rs) > 0)
        .collect();
    let only = match active.as_slice() {
        [] => new.or_else(|| {
            all.iter()
                .copied()
                .max_by(|a, b| created(a).cmp(&created(b)))
        }),
        [one] => Some(*one),
        _ => None,
    };
    if let Some(rs) = only {
        if spec_replicas(rs) == replicas {
            return Vec::new();
        }
        return vec![Scale {
            name: name(rs).to_owned(),
            to: replicas,
        }];
    }
    if is_saturated(deployment, new) {
        return old
            .iter()
            .map(AsRef::as_ref)
            .filter(|rs| spec_replicas(rs) > 0)
            .map(|rs| Scale {
                name: name(rs).to_owned(),
                to: 0,
            })
            .collect();
    }
    if !is_rolling(deployment) {
        return Vec::new();
    }
    let surge = bounds(deployment).surge;
    let total: i32 = active.iter().map(|rs| spec_replicas(rs)).sum();
    let allowed = if replicas > 0 { replicas + surge } else { 0 };
    let to_add = allowed - total;
    // The biggest first; of equal ones the newer when growing and the older when shrinking.
    active.sort_by(|a, b| {
        spec_replicas(b).cmp(&spec_replicas(a)).then_with(|| {
            if to_add > 0 {
                created(b).cmp(&created(a))
            } else {
                created(a).cmp(&created(b))
            }
        })
    });
    let mut added = 0;
    let mut sizes: Vec<i32> = active
        .iter()
        .map(|rs| {
            let share = proportion(deployment, rs, surge, to_add, added);
            added += share;
            spec_replicas(rs) + share
        })
        .collect();
    if to_add != 0
        && let Some(first) = sizes.first_mut()
    {
        *first = (*first + to_add - added).max(0);
    }
    active
        .iter()
        .zip(sizes)
        .map(|(rs, to)| Scale {
            name: name(rs).to_owned(),
            to,
        })
        .collect()
}

fn proportion(
    deployment: &Deployment,
    rs: &ReplicaSet,
    surge: i32,
    to_add: i32,
    added: i32,
) -> i32 {
    let size = spec_replicas(rs);
    if size == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = fraction(deployment, rs, surge);
    let left = to_add - added;
    if to_add > 0 {
        fraction.min(left)
    } else {
        fraction.max(left)
    }
}

fn fraction(deployment: &Deployment, rs: &ReplicaSet, surge: i32) -> i32 {
    let size = spec_replicas(rs);
    let replicas = desired(deployment);
    if replicas == 0 {
        return -size;
    }
    let before = match revision::max_annotation(rs) {
        Some(max) if max != 0 => max,
        _ => deployment
            .status
            .as_ref()
            .and_then(|status| status.replicas)
            .unwrap_or(0),
    };
    if before == 0 {
        return 0;
    }
    let numerator = i64::from(size) * i64::from(replicas + surge);
    let denominator = i64::from(before);
    // Round half away from zero; all numbers are positive here.
    let rounded = (2 * numerator + denominator).div_euclid(2 * denominator);
    i32::try_from(rounded).unwrap_or(i32::MAX) - size
}

#[cfg(test)]
mod tests;
