//! Decode cases in device memory, and the outcome of a launch.
use super::{DecodeMemory, Pages};
use crate::arithmetic::decode;
use crate::tensor::TensorError;
use crate::told::Told;
use crate::tolerance::Rule;
use crate::work::{
    Asked, Buffer, GUARD, Input, Judge, Judgement, LaunchOptions, OnDevice, POISON, Plans, Rows, Work,
    Written, guarded, guards, inside,
};
use ferroflash::driver::Harness;
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, LseView, Queries, Sinks, TensorView, TokenScales,
    VarlenQueries,
};
use ferroflash::{Attention, DType, Error, Plan};

/// Indices of the integer arrays among the inputs, and of the cache's first buffer.
const TABLE: usize = 3;
const LENGTHS: usize = 4;
const STARTS: usize = 5;
const SLOPES: usize = 6;
const V_SCALE: usize = 7;
const POOL: usize = 8;

/// Outputs of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeOutcome {
    o: Vec<u16>,
    lse: Vec<u32>,
    lses: Vec<f32>,
    counters: Vec<u32>,
    /// First row of each sequence.
    starts: Vec<usize>,
    /// The number of elements that belong to no sequence but were written.
    strays: usize,
}

/// Converts bytes to numbers.
macro_rules! numbers {
    ($type:ty, $bytes:expr) => {
        $bytes.as_chunks().0.iter().map(|b| <$type>::from_ne_bytes(*b)).collect::<Vec<_>>()
    };
}

/// Converts numbers to bytes.
macro_rules! bytes {
    ($numbers:expr) => {
        $numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>()
    };
}

impl DecodeOutcome {
    /// Splits the outputs of a launch of `memory`.
    fn new(memory: &DecodeMemory, written: &Written) -> Self {
        let case = &memory.case;
        let [o, lse] = [0, 1].map(|i| inside(&written.outputs[i]));
        let (mut o, lse) = (numbers!(u16, o), numbers!(u32, lse));
        let (starts, [heads, _]) = (case.starts(), case.heads);
        let (own, all) = (starts[case.filled.len()], case.q_rows());
        let mut strays = o.split_off(own * heads * case.columns());
        strays.retain(|x| *x != u16::from_ne_bytes([POISON; 2]));
        let mut strays = strays.len();
        let lse = if case.packed.is_some() {
            let tails = lse.chunks(all).flat_map(|head| &head[own..]);
            strays += tails.filter(|x| **x != u32::from_ne_bytes([POISON; 4])).count();
            let sequences =
                starts.windows(2).flat_map(|rows| lse.chunks(all).map(|head| &head[rows[0]..rows[1]]));
            sequences.flatten().copied().collect()
        } else {
            lse
        };
        let lses = lse.iter().map(|x| f32::from_bits(*x)).collect();
        DecodeOutcome { o, lse, lses, counters: numbers!(u32, written.counters), starts, strays }
    }

    /// Returns O of sequence `b`, `[queries][heads][head_dim]`.
    pub fn o(&self, b: usize) -> &[u16] {
        part(&self.o, &self.starts, b)
    }

    /// Returns LSE of sequence `b`, `[heads][queries]`.
    pub fn lse(&self, b: usize) -> &[f32] {
        part(&self.lses, &self.starts, b)
    }

    /// Returns the counters after the launch. All must be 0.
    pub fn counters(&self) -> &[u32] {
        &self.counters
    }

    /// Returns the bits of O and LSE of sequence `b`.
    pub fn bits(&self, b: usize) -> (&[u16], &[u32]) {
        (self.o(b), part(&self.lse, &self.starts, b))
    }

    /// Returns the number of elements that belong to no sequence but were written.
    pub fn strays(&self) -> usize {
        self.strays
    }

    /// Describes counters that are not 0.
    pub(super) fn counters_left(&self) -> Vec<String> {
        let left = self.counters.iter().any(|count| *count != 0);
        left.then(|| format!("counters are left at {:?}", self.counters)).into_iter().collect()
    }
}

/// Returns the rows of sequence `b` among `all` rows.
fn part<'o, T>(all: &'o [T], starts: &[usize], b: usize) -> &'o [T] {
    let each = all.len() / starts.last().copied().unwrap_or(1).max(1);
    &all[starts[b] * each..starts[b + 1] * each]
}

impl DecodeMemory {
    /// Returns the index of the first buffer of shared prefixes among the inputs.
    fn first_shared(&self) -> usize {
        POOL + self.case.buffers()[0] + self.extras.buffers().len()
    }
}

impl Work for DecodeMemory {
    fn inputs(&self) -> Vec<Input> {
        let case = &self.case;
        let starts: Vec<i32> = case.starts().iter().map(|start| *start as i32).collect();
        let own = [
            ("q", bytes!(self.q)),
            ("sinks", bytes!(self.sinks)),
            ("k_scale", self.scales(0)),
            ("table", bytes!(self.table.numbers)),
            ("lengths", bytes!(case.lengths(Told::Filled))),
            ("cu_seqlens_q", bytes!(starts)),
            ("alibi_slopes", bytes!(self.slopes.values())),
            ("v_scale", self.scales(1)),
        ];
        let own = own.into_iter().map(|(name, bytes)| Input::new(name, bytes));
        let extras = self.extras.buffers().into_iter().map(|(name, bytes)| Input::new(name, bytes));
        own.chain(self.pool.inputs(["cache"; 2])).chain(extras).chain(self.shared_inputs()).collect()
    }

    fn outputs(&self) -> Vec<Buffer> {
        let rows = self.case.q_rows() * self.case.heads[0];
        vec![guarded("o", rows * self.case.columns() * 2), guarded("lse", rows * 4)]
    }

    fn wants_counters(&self) -> bool {
        self.case.counters
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], options: LaunchOptions<'a>) -> Asked<'a> {
        let case = &self.case;
        let batch = case.filled.len();
        let [keys, values] = self.views(&inputs[POOL..][..case.buffers()[0]]);
        let mut pages = KvPages::new(keys, values);
        if case.cache == DType::E4m3 {
            // The scales of keys are in device memory, one per head. The scale of values is a number.
            let k = KvScale::Device { address: inputs[2], elements: case.heads[1] as u64, strides: [0, 1] };
            pages = pages.scales(k, KvScale::Value(case.scale(1, 0)));
        }
        if case.cache == DType::Int8 {
            let elements = (self.table.count * case.paging().0 * case.heads[1]) as u64;
            let scales = |at| TokenScales::contiguous(at, elements, case.heads[1]);
            pages = KvPages::int8(keys, values, scales(inputs[2]), scales(inputs[V_SCALE]));
        }
        let lengths = Index::new(inputs[LENGTHS], batch as u64);
        let table = Index::new(inputs[TABLE], self.table.numbers.len() as u64);
        let cache = match case.pages {
            Pages::Dense | Pages::DenseHnd => KvCache::dense(pages, lengths),
            Pages::Rows => KvCache::dense(pages, lengths).rows(table),
            _ => KvCache::paged(pages, table, self.table.columns, lengths),
        };
        let [batches, queries] = case.packed.as_ref().map_or([batch, case.queries], |_| [1, case.q_rows()]);
        let tensor = |at, columns| {
            let shape = [batches, queries, case.heads[0], columns];
            TensorView::bshd(at, shape.iter().product::<usize>() as u64, case.dtype, shape)
        };
        let (q, o) = (tensor(inputs[0], case.head_dim), tensor(outputs[0] + GUARD as u64, case.columns()));
        let mut decode =
            AttentionRequest::cached(q, cache.max_k(case.max_k), o).mask(case.mask).splits(case.splits);
        if options.wants_lse {
            let rows = [batches, case.heads[0], queries];
            let elements = rows.iter().product::<usize>() as u64;
            decode = decode.lse(LseView::contiguous(outputs[1] + GUARD as u64, elements, rows));
        }
        decode.scores.scale = case.scale;
        (decode.scores.softcap, decode.config, decode.scratch) =
            (case.softcap, options.config, options.scratch);
        decode.queries = case.packed.as_ref().map_or(Queries::Batched, |queries| {
            let most = queries.iter().max().copied().unwrap_or(1).max(1);
            Queries::Varlen(VarlenQueries::new(batch, Index::new(inputs[STARTS], batch as u64 + 1), most))
        });
        decode.scores.alibi = case.alibi.then(|| self.slopes.view(inputs[SLOPES]));
        let sinks = Sinks { address: inputs[1], elements: self.sinks.len() as u64 };
        decode.scores.sinks = case.sinks.then_some(sinks);
        self.extras.give(&mut decode, &inputs[POOL + case.buffers()[0]..]);
        decode.shared_prefixes = self.shared_prefixes(&inputs[self.first_shared()..]);
        Asked::Attention(decode)
    }

    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        let case = &self.case;
        let round = |told: &Told| {
            let own = [(LENGTHS, bytes!(case.lengths(*told))), (STARTS, bytes!(case.told_starts(*told)))];
            let shared = self.shared_integers(*told).into_iter().enumerate();
            let shared = shared.map(|(i, all)| (self.first_shared() + i, bytes!(all)));
            own.into_iter().chain(shared).collect()
        };
        case.told.iter().map(round).collect()
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let DecodeOutcome { o, lses: lse, .. } = DecodeOutcome::new(self, written);
        let (dtype, columns) = (self.case.dtype, self.case.columns());
        let o = o.iter().map(|bits| decode(dtype, *bits)).collect();
        Some(Rows { dtype, columns, o, lse })
    }

    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError> {
        let rounds: Vec<_> = self.case.told.iter().map(|told| self.case.lengths(*told)).collect();
        let right =
            rounds.iter().map(|lengths| self.references(lengths, rule)).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move |round, written| {
            let names = ["o", "lse"].into_iter().zip(&written.outputs);
            let outside = names.map(|(name, buffer)| guards(name, buffer));
            let outside = outside.fold(Judgement::default(), Judgement::and);
            let outcome = DecodeOutcome::new(self, written);
            if matches!(self.case.told[round], Told::Lost(_)) {
                return outside.and(Judgement { failures: outcome.counters_left(), ..Judgement::default() });
            }
            match self.compare(&outcome, &rounds[round], &right[round]) {
                Ok(judgement) => outside.and(judgement),
                Err(error) => Judgement::failed(error),
            }
        }))
    }
}

/// A case in device memory.
pub struct LoadedDecode<'a, D: Harness> {
    device: OnDevice<'a, D>,
    memory: &'a DecodeMemory,
}

impl<'a, D: Harness> LoadedDecode<'a, D> {
    /// Copies the inputs to the device. `config` names the entry to run; without it, the planner chooses.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn new(
        attention: &'a Attention<D>,
        memory: &'a DecodeMemory,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        Ok(LoadedDecode { device: OnDevice::new(attention, memory, config)?, memory })
    }

    /// Replaces the case's `cu_seqlens_q` in device memory. The tensors stay.
    ///
    /// # Errors
    /// Returns the driver's errors.
    pub fn start(&mut self, cu_seqlens_q: &[i32]) -> Result<(), Error> {
        self.device.change(&[(STARTS, bytes!(cu_seqlens_q))])
    }

    /// Launches `plan`, or a new plan if `plan` is `None`, on sequences of these lengths.
    ///
    /// # Errors
    /// Returns the errors of planning, launching and waiting.
    pub fn run(&mut self, plan: Option<&Plan>, lengths: &[i32]) -> Result<(Plan, DecodeOutcome), Error> {
        self.device.change(&[(LENGTHS, bytes!(lengths))])?;
        if self.memory.case.shared.is_some() {
            let rest = self.memory.case.rest(lengths);
            self.device.change(&[(self.memory.first_shared(), bytes!(rest))])?;
        }
        self.device.use_plan(plan.copied().map(Plans::Attention));
        let written = self.device.run()?;
        let Some(Plans::Attention(plan)) = self.device.plan() else {
            return Err(Error::invalid("plan", "none", "a launch has one"));
        };
        Ok((plan, DecodeOutcome::new(self.memory, &written)))
    }
}
