//! Older accesses of a record that its last accesses do not replace. There are two reasons: nothing orders an
//! older access before the last accesses, or the scope of the older access permits fewer unordered accesses.

use std::{collections::BTreeMap, ops::RangeInclusive};

use crate::stamp::{Reach, Stamp};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Reads,
    Writes,
}

/// The key of an access: index of the record, reach and role of the access, index of the block, number of the
/// agent.
type Key = (u32, Reach, Role, u32, u16);

/// For each agent, its last access of each role and reach.
#[derive(Debug, Default)]
pub(super) struct Rest(BTreeMap<Key, Stamp>);

impl Rest {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub fn add(&mut self, at: usize, role: Role, stamp: Stamp) {
        self.0.insert(key(at, role, &stamp), stamp);
    }

    /// Removes the access that has the agent, role and reach of `like`.
    #[cold]
    pub fn take(&mut self, at: usize, role: Role, like: &Stamp) -> Option<Stamp> {
        self.0.remove(&key(at, role, like))
    }

    /// Accesses of record `at` that must be ordered with `actor`.
    pub fn of(&self, at: usize, actor: &Stamp) -> impl Iterator<Item = (Role, &Stamp)> {
        // Any number of blocks may use atomics at one address to count. These atomics need no check against
        // each other.
        let most = if actor.reach() == Reach::All { Reach::Block } else { Reach::All };
        self.0.range(all_of(at, most)).map(|(key, stamp)| (key.2, stamp))
    }

    /// Copies the accesses of record `from` to record `to`.
    pub fn copy(&mut self, from: usize, to: usize, change: impl Fn(&Stamp) -> Stamp) {
        let all: Vec<_> = self.0.range(all_of(from, Reach::All)).map(|(k, s)| (k.2, change(s))).collect();
        all.into_iter().for_each(|(role, stamp)| self.add(to, role, stamp));
    }

    /// Forgets the accesses of record `at` for which `gone` returns true.
    pub fn forget(&mut self, at: usize, gone: impl Fn(Role, &Stamp) -> bool) {
        let all = self.0.range(all_of(at, Reach::All)).filter(|(key, stamp)| gone(key.2, stamp));
        let keys: Vec<_> = all.map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| {
            self.0.remove(key);
        });
    }
}

fn key(at: usize, role: Role, stamp: &Stamp) -> Key {
    (at as u32, stamp.reach(), role, stamp.block, stamp.agent)
}

/// The keys of the accesses to record `at` whose reach is at most `most`.
fn all_of(at: usize, most: Reach) -> RangeInclusive<Key> {
    (at as u32, Reach::Nobody, Role::Reads, 0, 0)..=(at as u32, most, Role::Writes, u32::MAX, u16::MAX)
}
