//! Who a container's process runs as, from the image's own passwd and group.
//!
//! Pure: takes the text of the two files.

use crate::spec::UserSpec;

/// Ids to run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// For `$HOME`.
    pub(crate) home: String,
}

/// A name that the image's files do not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("unable to find user {name}: no matching entries in passwd file")]
    NoUser { name: String },
    #[error("unable to find group {name}: no matching entries in group file")]
    NoGroup { name: String },
}

struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn accounts(passwd: &str) -> impl Iterator<Item = Account<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or("/");
        Some(Account {
            name,
            uid,
            gid,
            home,
        })
    })
}

fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

/// Resolves a spec against the contents of /etc/passwd and /etc/group.
pub(crate) fn resolve(spec: &UserSpec, passwd: &str, group: &str) -> Result<Identity, UserError> {
    let text = spec.user.as_deref().unwrap_or_default();
    let (user, wanted_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let account = if let Some(uid) = spec.uid {
        Err(uid)
    } else if user.is_empty() {
        Err(0)
    } else if let Some(account) = accounts(passwd).find(|account| account.name == user) {
        Ok(account)
    } else {
        Err(user.parse().map_err(|_not_a_number| UserError::NoUser {
            name: user.to_owned(),
        })?)
    };
    let account = match account {
        Ok(account) => Ok(account),
        Err(uid) => accounts(passwd)
            .find(|account| account.uid == uid)
            .ok_or(uid),
    };
    let (uid, default_gid, name, home) = match &account {
        Ok(account) => (account.uid, account.gid, Some(account.name), account.home),
        Err(uid) => (*uid, 0, None, "/"),
    };
    let gid = match (spec.gid, wanted_group) {
        (Some(gid), _) => gid,
        // A user chosen by the pod does not inherit the image user's group.
        (None, Some(wanted)) if spec.uid.is_none() && !wanted.is_empty() => {
            match groups(group).find(|(name, _, _)| *name == wanted) {
                Some((_, gid, _)) => gid,
                None => wanted.parse().map_err(|_not_a_number| UserError::NoGroup {
                    name: wanted.to_owned(),
                })?,
            }
        }
        _ => default_gid,
    };
    let mut all = vec![gid];
    if let (Some(name), false) = (name, spec.strict_groups) {
        all.extend(
            groups(group)
                .filter(|(_, _, members)| members.split(',').any(|member| member == name))
                .map(|(_, gid, _)| gid),
        );
    }
    all.extend(&spec.supplementary_groups);
    let mut groups = Vec::with_capacity(all.len());
    for gid in all {
        if !groups.contains(&gid) {
            groups.push(gid);
        }
    }
    Ok(Identity {
        uid,
        gid,
        groups,
        home: home.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102::/srv:/bin/false\n";
    const GROUP: &str = "root:x:0:\nwww:x:102:\nlogs:x:7:web,other\n";

    fn with(change: impl FnOnce(&mut UserSpec)) -> Result<Identity, UserError> {
        let mut spec = UserSpec::default();
        change(&mut spec);
        resolve(&spec, PASSWD, GROUP)
    }

    #[test]
    fn nothing_means_root() {
        let identity = with(|_| {}).unwrap();
        assert_eq!(
            (identity.uid, identity.gid, identity.home.as_str()),
            (0, 0, "/root")
        );
        assert_eq!(identity.groups, [0]);
    }

    #[test]
    fn names_bring_their_groups() {
        let identity = with(|s| s.user = Some("web".to_owned())).unwrap();
        assert_eq!((identity.uid, identity.gid), (101, 102));
        assert_eq!(identity.groups, [102, 7]);
        let strict = with(|s| {
            s.user = Some("web".to_owned());
            s.strict_groups = true;
            s.supplementary_groups = vec![2000];
        })
        .unwrap();
        assert_eq!(strict.groups, [102, 2000]);
    }

    #[test]
    fn numbers_need_no_entry() {
        let identity = with(|s| s.user = Some("4711:www".to_owned())).unwrap();
        assert_eq!((identity.uid, identity.gid), (4711, 102));
        let number = with(|s| s.user = Some("101".to_owned())).unwrap();
        assert_eq!((number.gid, number.home.as_str()), (102, "/srv"));
    }

    #[test]
    fn the_pod_overrides_the_image() {
        let identity = with(|s| {
            s.user = Some("web:logs".to_owned());
            s.uid = Some(1000);
        })
        .unwrap();
        assert_eq!((identity.uid, identity.gid), (1000, 0));
        let both = with(|s| {
            s.uid = Some(1000);
            s.gid = Some(3000);
        })
        .unwrap();
        assert_eq!((both.uid, both.gid), (1000, 3000));
    }

    #[test]
    fn unknown_names_are_errors() {
        assert!(matches!(
            with(|s| s.user = Some("nobody".to_owned())),
            Err(UserError::NoUser { .. })
        ));
        assert!(matches!(
            with(|s| s.user = Some("web:nogroup".to_owned())),
            Err(UserError::NoGroup { .. })
        ));
    }
}
