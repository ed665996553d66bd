//! The integers that describe a case's sequences in device memory.
use super::{Case, Pages, starts};
use crate::device_lengths::DeviceLengths;
use crate::inputs::Random;
use crate::sequences::Sequences;
use crate::shared::Shared;

impl Case {
    /// Makes the queries of a varlen batch padded: `padding` has the rows behind the queries of each
    /// sequence. They become a sequence without keys.
    #[must_use]
    pub fn padded(self, padding: impl IntoIterator<Item = usize>) -> Self {
        let twice =
            |numbers: &[usize], other: usize| numbers.iter().flat_map(|n| [*n, other]).collect::<Vec<_>>();
        let queries = (0..self.batch()).map(|b| self.queries_of(b)).zip(padding);
        let unused = if self.unused.is_empty() { vec![] } else { twice(&self.unused, 0) };
        let queries: Vec<_> = queries.flat_map(|(queries, padding)| [queries, padding]).collect();
        let filled = twice(&self.filled, 0);
        let seeds = (1..=filled.len() as u64).collect();
        Case { filled, unused, seeds, padded: true, ..self }.varlen_queries(queries)
    }

    /// Returns the sequences of varlen tensors, or `None` if all sequences have equal lengths.
    pub fn sequences(&self) -> Option<Sequences> {
        let (Pages::Tensors(_), Some(_)) = (self.pages, &self.varlen_queries) else { return None };
        let rows = |b: usize| self.filled[b] + self.unused.get(b).copied().unwrap_or(0);
        let integers = |all: Vec<usize>| all.into_iter().map(|n| n as i32).collect::<Vec<_>>();
        Some(Sequences {
            cu_seqlens_q: integers(self.starts()),
            cu_seqlens_k: integers(starts((0..self.batch()).map(rows))),
            seqused_k: (!self.unused.is_empty()).then(|| integers(self.filled.clone())),
        })
    }

    /// Returns the number of first pages that sequence `b` shares with sequence `b - 1`, if groups share
    /// prefixes.
    pub(crate) fn shared_with_previous(&self, b: usize) -> usize {
        let shared = self.shared.as_ref();
        let is_later = |shared: &&Shared| shared.group(b).is_some_and(|(_, i)| i > 0);
        shared.filter(is_later).map_or(0, |shared| shared.pages(b))
    }

    /// Returns the number of keys of the prefix of sequence `b`.
    pub(crate) fn prefix(&self, b: usize) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.pages(b)) * self.paging().0
    }

    /// Returns the least number of keys of sequence `b` with which every query sees the whole prefix. Under a
    /// causal mask, these are the prefix and a key for all but one of the queries.
    pub(crate) fn least(&self, b: usize) -> usize {
        let behind = if self.mask.sides().1 == Some(0) { self.queries - 1 } else { 0 };
        match self.prefix(b) {
            0 => 0,
            prefix => prefix + behind,
        }
    }

    /// Returns the keys of each sequence behind its prefix, if the device holds these lengths.
    pub(crate) fn rest(&self, lengths: &[i32]) -> Vec<i32> {
        let rest = |(b, length): (usize, &i32)| length.wrapping_sub(self.prefix(b) as i32);
        lengths.iter().enumerate().map(rest).collect()
    }

    /// Returns the keys of each sequence, as device memory holds them.
    pub(crate) fn lengths(&self, device_lengths: DeviceLengths) -> Vec<i32> {
        let filled = self.filled.iter().map(|keys| *keys as i32);
        let most = self.max_k as i32;
        match device_lengths {
            DeviceLengths::Filled => filled.collect(),
            DeviceLengths::Fewer(seed) => {
                let mut random = Random::new(seed);
                let fewer = |keys: i32| match random.bits() % 4 {
                    0 => [0, 1, keys, keys - 1][(random.bits() % 4) as usize].clamp(0, keys),
                    _ => (random.bits() % (keys as u64 + 1)) as i32,
                };
                filled.map(fewer).enumerate().map(|(b, keys)| keys.max(self.least(b) as i32)).collect()
            }
            DeviceLengths::Garbage(seed) | DeviceLengths::Lost(seed) => {
                let mut random = Random::new(seed);
                let garbage = |keys: i32| {
                    let garbage = [keys, i32::MAX, -1, keys, i32::MIN, 0, most + 1, keys / 2, i32::MIN + 1];
                    garbage[(random.bits() % 9) as usize]
                };
                filled.map(garbage).collect()
            }
        }
    }

    /// Returns `cu_seqlens_q`, as device memory holds it.
    pub(crate) fn device_starts(&self, device_lengths: DeviceLengths) -> Vec<i32> {
        let starts = self.starts().into_iter().map(|start| start as i32);
        let DeviceLengths::Lost(seed) = device_lengths else { return starts.collect() };
        let (mut random, rows) = (Random::new(!seed), self.q_shape()[1] as i32);
        let lost = |start: i32| {
            let lost = [start, i32::MAX, -1, i32::MIN, 0, rows, rows + 1, rows - 1, start + 1];
            lost[(random.bits() % 9) as usize]
        };
        starts.map(lost).collect()
    }
}
