//! Where the API servers are, and which one to try next.
//!
//! Pure. Starts from what is known at build, follows what the cluster says in its sessions, and
//! never forgets the address that worked when the machine joined.

use super::membership::Membership;

/// The servers in the order they are tried; the first is the present one.
#[derive(Clone, Debug)]
pub(super) struct Servers {
    order: Vec<String>,
    /// Kept whatever the cluster says.
    fallback: Vec<String>,
    /// How many were tried in vain since the last session.
    tried: usize,
}

impl Servers {
    /// The first of `known` is tried first; `fallback` always stays among them.
    pub(super) fn new(known: Vec<String>, fallback: Vec<String>) -> Self {
        let mut servers = Self {
            order: Vec::new(),
            fallback,
            tried: 0,
        };
        servers.set(known);
        servers
    }

    /// Of a node that joined.
    pub(super) fn of(membership: &Membership) -> Self {
        Self::new(
            membership.servers.clone(),
            vec![membership.joined_at.clone()],
        )
    }

    /// The server to talk to.
    pub(super) fn current(&self) -> &str {
        self.order.first().map_or("", String::as_str)
    }

    /// Every address, the present one first.
    pub(super) fn all(&self) -> &[String] {
        &self.order
    }

    /// Takes over a list; the present server stays the present one while it is on it.
    pub(super) fn set(&mut self, list: Vec<String>) {
        let current = self.current().to_owned();
        let mut order: Vec<String> = Vec::new();
        for server in list.into_iter().chain(self.fallback.clone()) {
            if !server.is_empty() && !order.contains(&server) {
                order.push(server);
            }
        }
        if let Some(at) = order.iter().position(|server| *server == current) {
            order.rotate_left(at);
        }
        self.order = order;
    }

    /// There is a session with the present server.
    pub(super) fn works(&mut self) {
        self.tried = 0;
    }

    /// The present server failed: goes on to the next. True when every one has been tried and
    /// it is time for a pause.
    pub(super) fn fails(&mut self) -> bool {
        if !self.order.is_empty() {
            self.order.rotate_left(1);
        }
        self.tried += 1;
        if self.tried < self.order.len() {
            return false;
        }
        self.tried = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn every_server_is_tried_before_a_pause() {
        let mut servers = Servers::new(list(&["a", "b", "c"]), vec![]);
        servers.works();
        assert!(!servers.fails());
        assert_eq!(servers.current(), "b");
        assert!(!servers.fails());
        assert!(servers.fails());
        assert_eq!(servers.current(), "a");
        let mut lone = Servers::new(list(&["a"]), vec![]);
        assert!(lone.fails() && lone.fails());
    }

    #[test]
    fn a_new_list_keeps_the_present_server_and_the_one_joined_at() {
        let mut servers = Servers::new(list(&["a", "b"]), list(&["gate"]));
        assert_eq!(servers.all(), ["a", "b", "gate"]);
        servers.fails();
        servers.set(list(&["a", "b", "c"]));
        assert_eq!(servers.all(), ["b", "c", "gate", "a"]);
        servers.set(list(&["c", "d"]));
        assert_eq!(servers.all(), ["c", "d", "gate"]);
    }
}
