//! The outputs of a launch.
use super::Memory;
use crate::place::Place;
use crate::tensor::HostTensor;
use crate::tolerance::{Reference, Verdict};
use crate::work::{GUARD, Judgement, POISON, Written};
use ferroflash::DType;
use ferroflash::request::RowOutputs;
use std::ops::Range;

/// Number of elements of the guards before and behind O, and before and behind each output of rows.
const GUARDS: [usize; 2] = [GUARD / 2, GUARD / 4];

/// Batches, and rows of these batches.
pub(super) type Part = [Range<usize>; 2];

/// Outputs of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The kernel that ran.
    pub entry: &'static str,
    /// The planner's reason for this kernel.
    pub reason: &'static str,
    /// O with its guard elements.
    o: Vec<u16>,
    /// O's place between the guards.
    place: Place,
    /// Number of rows of O that the kernel writes. The rows that the kernel writes come before all other
    /// rows.
    rows: usize,
    /// Each output of rows: whether the launch writes it, and its bits with guard elements.
    values: RowOutputs<(bool, Vec<u32>)>,
    /// The bits of the largest score of each head with guard elements, if the launch writes them.
    head_maxima: Option<Vec<u32>>,
    counters: Vec<u32>,
    /// The rows of each sequence of a cache.
    sequences: Vec<Part>,
}

impl Outcome {
    /// Splits the outputs of a launch of `memory` that writes this number of rows.
    pub(super) fn new(memory: &Memory, written: &Written, rows: usize, wants_lse: bool) -> Self {
        let wanted = RowOutputs { lse: wants_lse, ..memory.rows };
        let mut buffers = written.outputs[1..].iter();
        let values =
            wanted.map(|_, wanted| (wanted, buffers.next().map_or(vec![], |all| numbers!(u32, all))));
        let batch = memory.cache.as_ref().map_or(0, |cache| cache.case.batch());
        Outcome {
            entry: written.entry,
            reason: written.reason,
            o: numbers!(u16, written.outputs[0]),
            place: memory.o,
            rows,
            values,
            head_maxima: memory.head_maxima.then(|| numbers!(u32, written.outputs[1 + RowOutputs::COUNT])),
            counters: numbers!(u32, written.counters),
            sequences: (0..batch).map(|b| memory.part(b)).collect(),
        }
    }

    /// Returns O as it lies in memory.
    pub fn o(&self) -> &[u16] {
        &self.o[GUARDS[0]..self.o.len() - GUARDS[0]]
    }

    /// Returns LSE, `[batch, heads, seqlen]`.
    pub fn lse(&self) -> Vec<f32> {
        floats(inner(&self.values.lse.1))
    }

    /// Returns the outputs of rows that the launch writes, `[batch, heads, seqlen]`.
    pub fn values(&self) -> RowOutputs<Option<Vec<f32>>> {
        self.values.as_ref().map(|_, (wanted, bits)| wanted.then(|| floats(inner(bits))))
    }

    /// Returns the largest score of each head, if the launch writes it.
    pub fn head_maxima(&self) -> Option<Vec<f32>> {
        self.head_maxima.as_ref().map(|all| floats(inner(all)))
    }

    /// Returns the counters after the launch. All must be 0.
    pub fn counters(&self) -> &[u32] {
        &self.counters
    }

    /// Returns the bits of O and LSE of sequence `b` of a cache: `[queries][heads][head_dim]` and
    /// `[heads][queries]`.
    pub fn bits(&self, b: usize) -> (Vec<u16>, Vec<u32>) {
        let [batches, rows] = self.sequences[b].clone();
        let [_, all, heads, columns] = self.place.shape;
        let first = (batches.start * all + rows.start) * heads;
        let row = |index| &self.o()[self.place.row(index)..][..columns];
        let o = (first..first + rows.len() * heads).flat_map(row).copied().collect();
        (o, self.part_of(inner(&self.values.lse.1), [batches, rows]))
    }

    /// Returns the values of a part's rows.
    fn part_of(&self, values: &[u32], [batches, rows]: Part) -> Vec<u32> {
        let [_, all, heads, _] = self.place.shape;
        let of_heads = values.chunks(all).skip(batches.start * heads).take(batches.len() * heads);
        of_heads.flat_map(|head| &head[rows.clone()]).copied().collect()
    }

    /// Returns the number of elements that were written outside of outputs: in guards, between rows, and in
    /// rows of no sequence.
    pub fn strays(&self) -> usize {
        let [batches, all, heads, head_dim] = self.place.shape;
        let o = Place { shape: [batches, self.rows, heads, head_dim], ..self.place };
        let strides = [heads * all, 1, all, 1].map(|elements| elements as i64);
        let of_rows = Place { buffer: 0, offset: 0, shape: [batches, self.rows, heads, 1], strides };
        let strays = |(_, (wanted, bits)): (_, &(bool, Vec<u32>))| {
            let own = Place { shape: if *wanted { of_rows.shape } else { [0; 4] }, ..of_rows };
            own.strays(bits, u32::from_ne_bytes([POISON; 4]))
        };
        let of_rows = self.values.as_ref().named().map(strays).sum::<usize>();
        o.strays(&self.o, u16::from_ne_bytes([POISON; 2])) + of_rows
    }

    /// Judges writes outside of the outputs, and the counters.
    pub(super) fn outside(&self) -> Judgement {
        let left = self.counters.iter().any(|count| *count != 0);
        let failures = left.then(|| format!("counters are left at {:?}", self.counters));
        let counters = Judgement { failures: failures.into_iter().collect(), ..Judgement::default() };
        Judgement::outside(self.strays()).and(counters)
    }

    /// Judges the largest scores of heads: they are exactly those of the rows that the launch writes. Without
    /// the output of rows, only writes outside of the output are judged.
    pub(super) fn of_heads(&self) -> Judgement {
        let Some(all) = &self.head_maxima else { return Judgement::default() };
        let strays = [&all[..GUARDS[1]], &all[all.len() - GUARDS[1]..]].concat();
        let strays = strays.iter().filter(|bits| **bits != u32::from_ne_bytes([POISON; 4])).count();
        let [_, rows, heads, _] = self.place.shape;
        let of_rows = self.values().max_logits.map(|values| {
            let of_head = |head: usize| {
                let own = values.chunks(rows).skip(head).step_by(heads).flat_map(|all| &all[..self.rows]);
                own.copied().fold(f32::NEG_INFINITY, f32::max)
            };
            (0..heads).map(of_head).collect::<Vec<_>>()
        });
        let found = floats(inner(all));
        let differs = of_rows.filter(|expected| *expected != found);
        let failed =
            differs.map(|want| Judgement::failed(format!("max_logits_head is {found:?}, not {want:?}")));
        failed.into_iter().fold(Judgement::outside(strays), Judgement::and)
    }

    /// Judges the outputs by [`Reference::judge_rows`], and counts other writes. Returns `None` if the
    /// shapes differ.
    pub fn judge(&self, reference: &Reference, dtype: DType) -> Option<Verdict> {
        let all = [0..self.place.shape[0], 0..self.rows];
        let verdict = self.judge_part(all, dtype, |o, rows| reference.judge_rows(o, rows))?;
        Some(Verdict { strays: self.strays(), ..verdict })
    }

    /// Judges a part of the rows. `None` if the shapes differ.
    pub(super) fn judge_part(
        &self,
        part: Part,
        dtype: DType,
        judge: impl FnOnce(&HostTensor, RowOutputs<Option<&[f32]>>) -> Option<Verdict>,
    ) -> Option<Verdict> {
        let Place { shape, strides, .. } = self.place;
        let o = HostTensor::new(self.o(), 0, dtype, shape, strides).ok()?;
        let own = |bits| floats(&self.part_of(inner(bits), part.clone()));
        let values = self.values.as_ref().map(|_, (wanted, bits)| wanted.then(|| own(bits)));
        let [batches, rows] = part.clone();
        judge(&o.batches(batches).rows(rows), values.as_ref().map(|_, values| values.as_deref()))
    }
}

/// Returns an output of rows without its guards.
fn inner(values: &[u32]) -> &[u32] {
    &values[GUARDS[1]..values.len() - GUARDS[1]]
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(*bits)).collect()
}
