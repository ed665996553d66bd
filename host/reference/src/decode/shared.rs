//! Prefixes that groups of sequences share, and the integers that describe them in device memory.
use super::{DecodeCase, DecodeMemory, Shared};
use crate::inputs::Random;
use crate::told::Told;
use crate::work::Input;
use ferroflash::request::{Index, Level, SharedPrefixes, VarlenQueries};

/// The buffers of shared prefixes among the inputs, in this order.
const NAMES: [&str; 5] = ["rest_lengths", "groups", "prefix_table", "prefix_lengths", "rest_table"];

impl DecodeCase {
    /// Returns the number of first pages that sequence `b` shares with sequence `b - 1`, if groups share
    /// prefixes.
    pub(super) fn shared_with_previous(&self, b: usize) -> usize {
        let shared = self.shared.as_ref();
        let is_later = |shared: &&Shared| shared.group(b).is_some_and(|(_, i)| i > 0);
        shared.filter(is_later).map_or(0, |shared| shared.pages(b))
    }

    /// Returns the number of keys of the prefix of sequence `b`.
    pub(super) fn prefix(&self, b: usize) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.pages(b)) * self.paging().0
    }

    /// Returns the least number of keys of sequence `b` with which every query sees the whole prefix. Under a
    /// causal mask, these are the prefix and a key for all but one of the queries.
    pub(super) fn least(&self, b: usize) -> usize {
        let behind = if self.mask.sides().1 == Some(0) { self.queries - 1 } else { 0 };
        match self.prefix(b) {
            0 => 0,
            prefix => prefix + behind,
        }
    }

    /// Returns the keys of each sequence behind its prefix, if the device holds these lengths.
    pub(super) fn rest(&self, lengths: &[i32]) -> Vec<i32> {
        let rest = |(b, length): (usize, &i32)| length.wrapping_sub(self.prefix(b) as i32);
        lengths.iter().enumerate().map(rest).collect()
    }

    /// Returns the number of buffers of shared prefixes.
    fn shared_buffers(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| if shared.varlen { NAMES.len() } else { 1 })
    }
}

impl DecodeMemory {
    /// Returns the integers of shared prefixes, one list per buffer.
    pub(super) fn shared_integers(&self, told: Told) -> Vec<Vec<i32>> {
        let case = &self.case;
        let (Some(shared), (page, _)) = (&case.shared, case.paging()) else { return vec![] };
        let columns = self.table.columns;
        let row = |b: usize| self.table.numbers[b * columns..][..columns].iter().map(|page| *page as i32);
        let firsts = shared.groups.iter().scan(0, |next, [count, _]| {
            *next += count;
            Some(*next - count)
        });
        let firsts: Vec<usize> = firsts.collect();
        let ends = firsts.iter().copied().chain([case.filled.len()]).map(|b| (b * case.queries) as i32);
        let rest = (0..case.filled.len()).flat_map(|b| {
            let own = row(b).skip(shared.pages(b)).chain(std::iter::repeat(i32::MAX));
            own.take(columns).collect::<Vec<_>>()
        });
        let all = [
            case.rest(&case.lengths(told)),
            ends.collect(),
            firsts.iter().flat_map(|b| row(*b)).collect(),
            shared.groups.iter().map(|[_, pages]| (pages * page) as i32).collect(),
            rest.collect(),
        ];
        let mut all: Vec<Vec<i32>> = all.into_iter().take(case.shared_buffers()).collect();
        if let Told::Lost(seed) = told {
            let mut random = Random::new(seed);
            let garbage = [i32::MAX, -1, i32::MIN, 0, 1, case.max_k as i32 + 1, i32::MIN + 1];
            all.iter_mut().flatten().filter(|_| random.bits().is_multiple_of(2)).for_each(|x| {
                *x = garbage[(x.unsigned_abs() as usize + seed as usize) % garbage.len()];
            });
        }
        all
    }

    /// Returns the inputs of shared prefixes.
    pub(super) fn shared_inputs(&self) -> Vec<Input> {
        let all = self.shared_integers(Told::Filled).into_iter().zip(NAMES);
        all.map(|(all, name)| Input::new(name, all.iter().flat_map(|x| x.to_ne_bytes()).collect())).collect()
    }

    /// Returns the shared prefixes, whose buffers lie at the addresses `at`.
    pub(super) fn shared_prefixes(&self, at: &[u64]) -> Option<SharedPrefixes> {
        let (case, batch, columns) = (&self.case, self.case.filled.len(), self.table.columns);
        let shared = case.shared.as_ref()?;
        let (count, lengths) = (shared.groups.len(), Index::new(at[0], batch as u64));
        let prefixes = match at {
            [_, starts, prefix, prefix_lengths, rest] => {
                let level = |table, rows: usize, lengths| {
                    Level::new(Index::new(table, (rows * columns) as u64), columns, lengths)
                };
                let most = shared.groups.iter().map(|[sequences, _]| sequences * case.queries).max();
                let starts = Index::new(*starts, count as u64 + 1);
                let queries = VarlenQueries::new(count, starts, most.unwrap_or(1));
                let prefix = level(*prefix, count, Index::new(*prefix_lengths, count as u64));
                SharedPrefixes::varlen(queries, prefix, level(*rest, batch, lengths))
            }
            _ => SharedPrefixes::equal(count, shared.groups[0][1], lengths),
        };
        Some(if shared.always { prefixes.always() } else { prefixes })
    }
}
