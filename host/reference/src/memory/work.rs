//! Attention problems on a device.
use super::Memory;
use super::cache::Cache;
use super::outcome::Outcome;
use crate::arithmetic::decode;
use crate::case::Pages;
use crate::tensor::TensorError;
use crate::told::Told;
use crate::tolerance::Rule;
use crate::work::{Buffer, GUARD, Input, Judge, LaunchOptions, Rows, Work, Written, guarded};
use ferroflash::DType;
use ferroflash::plan::{AnyRequest, Problem};
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, Level, LseView, Queries, RowOutputs, Scores,
    SharedPrefixes, TokenScales, VarlenKeys, VarlenQueries,
};

/// Addresses of buffers, in order.
type Addresses<'a> = &'a mut dyn FnMut() -> u64;

impl Memory {
    /// Returns the integers in device memory during a launch. Their buffers are the first inputs.
    fn integers(&self, told: Told) -> Vec<(&'static str, Vec<i32>)> {
        let of_tensors = self.sequences.iter().flat_map(|sequences| sequences.told(told).into_arrays());
        let of_cache = self.cache.iter().flat_map(|cache| cache.integers(told));
        of_tensors.chain(of_cache).collect()
    }

    /// Returns the request in device memory. Copies of the [inputs](Work::inputs) are at `inputs`, O is at
    /// `o`, and a contiguous LSE is at `lse`.
    pub fn request(&self, inputs: &[u64], o: u64, lse: u64) -> AttentionRequest<'static> {
        let Problem { dtype, kv_dtype, o_dtype, mask, alignment, scale, softcap, .. } = self.problem;
        let mut inputs = inputs.iter().copied();
        let next = &mut || inputs.next().unwrap_or(0);
        let integers = self.integers(Told::Filled).into_iter();
        let integers: Vec<_> = integers.map(|(_, all)| Index::new(next(), all.len() as u64)).collect();
        let buffers: Vec<_> = self.buffers.iter().map(|buffer| (next(), buffer.len())).collect();
        let tensor = |place: &super::Place, dtype| {
            let (base, elements) = buffers[place.buffer];
            place.view(base, elements, dtype)
        };
        let (q, o) = (tensor(&self.q, dtype), self.o.view(o, self.o.span(), o_dtype));
        let request = match (&self.cache, &self.sequences, &integers[..]) {
            (Some(cache), ..) => self.on_cache(cache, [q, o], &integers, next),
            (None, Some(sequences), [starts_q, starts_k, used @ ..]) => {
                let keys = VarlenKeys::new(*starts_k, self.problem.seqlen_k);
                let keys = used.iter().fold(keys, |keys, used| keys.seqused_k(*used));
                let queries = VarlenQueries::new(sequences.count(), *starts_q, self.problem.seqlen_q);
                AttentionRequest::varlen(
                    q,
                    tensor(&self.k, kv_dtype),
                    tensor(&self.v, kv_dtype),
                    o,
                    queries,
                    keys,
                )
            }
            _ => AttentionRequest::dense(q, tensor(&self.k, kv_dtype), tensor(&self.v, kv_dtype), o),
        };
        let mut scores = Scores::new().softcap(softcap.unwrap_or_default());
        (scores.scale, scores.alibi) = (scale, self.slopes.as_ref().map(|slopes| slopes.view(next())));
        let shape = self.lse_shape();
        let lse = LseView::contiguous(lse, shape.iter().product::<usize>() as u64, shape);
        let mut request = request.mask(mask).alignment(alignment).scores(scores).lse(lse);
        self.extras.give(&mut request, next);
        request.variant = self.variant;
        request
    }

    fn on_cache(
        &self,
        cache: &Cache,
        [q, o]: [ferroflash::request::TensorView; 2],
        integers: &[Index],
        next: Addresses<'_>,
    ) -> AttentionRequest<'static> {
        let (Cache { case, table, .. }, [page, heads]) =
            (cache, [cache.case.paging().0, cache.case.heads[1]]);
        let [buffers, tensors] = case.sharing().buffers();
        let pool: Vec<_> = (0..buffers).map(|_| next()).collect();
        let rows = table.count * page * heads;
        let pages = [&self.k, &self.v]
            .map(|place| place.view(pool[place.buffer - 1], tensors * rows * case.head_dim, case.kv_dtype()));
        let (table_at, mut scale) = (Index::new(next(), table.numbers.len() as u64), || next());
        let pages = match case.kv_dtype() {
            // The scales of keys are in device memory, one per head. The scale of values is a number.
            DType::E4m3 => {
                let k = KvScale::Device { address: scale(), elements: heads as u64, strides: [0, 1] };
                scale();
                KvPages::new(pages[0], pages[1]).scales(k, KvScale::Value(case.scale(1, 0)))
            }
            DType::Int8 => {
                let [k, v] = [(); 2].map(|()| TokenScales::contiguous(scale(), rows as u64, heads));
                KvPages::int8(pages[0], pages[1], k, v)
            }
            _ => KvPages::new(pages[0], pages[1]),
        };
        let (starts, rest) = integers.split_at(usize::from(case.packed.is_some()));
        let (lengths, shared) = (rest[0], &rest[1..]);
        let kv = match case.pages {
            Pages::Nhd(_) | Pages::Hnd(_) | Pages::Interleaved(_) => {
                KvCache::paged(pages, table_at, table.columns, lengths)
            }
            Pages::Rows => KvCache::dense(pages, lengths).rows(table_at),
            _ => KvCache::dense(pages, lengths),
        };
        let mut request = AttentionRequest::cached(q, kv.max_k(case.max_k), o).splits(case.splits);
        request.queries = starts.first().map_or(Queries::Batched, |starts| {
            Queries::Varlen(VarlenQueries::new(case.batch(), *starts, self.problem.seqlen_q))
        });
        request.shared_prefixes = cache.shared_prefixes(shared);
        request
    }
}

impl Cache {
    /// Returns the shared prefixes of these integers.
    fn shared_prefixes(&self, integers: &[Index]) -> Option<SharedPrefixes> {
        let (case, columns) = (&self.case, self.table.columns);
        let shared = case.shared.as_ref()?;
        let prefixes = match integers {
            [rest_lengths, groups, prefix, prefix_lengths, rest] => {
                let level = |table, lengths| Level::new(table, columns, lengths);
                let most = shared.groups.iter().map(|[sequences, _]| sequences * case.queries).max();
                let queries = VarlenQueries::new(shared.groups.len(), *groups, most.unwrap_or(1));
                let prefix = level(*prefix, *prefix_lengths);
                SharedPrefixes::varlen(queries, prefix, level(*rest, *rest_lengths))
            }
            _ => SharedPrefixes::equal(shared.groups.len(), shared.groups[0][1], *integers.first()?),
        };
        Some(if shared.always { prefixes.always() } else { prefixes })
    }

    /// Returns the buffers of the cache.
    fn inputs(&self) -> Vec<Input> {
        let table = Input::new("table", bytes!(self.table.numbers));
        let scales = (self.case.kv_dtype() != self.case.dtype).then(|| {
            [("k_scale", 0), ("v_scale", 1)].map(|(name, which)| Input::new(name, self.scales(which)))
        });
        self.pool
            .inputs(["cache"; 2])
            .into_iter()
            .chain([table])
            .chain(scales.into_iter().flatten())
            .collect()
    }
}

impl Work for Memory {
    fn inputs(&self) -> Vec<Input> {
        let integers = self.integers(Told::Filled).into_iter();
        let integers = integers.map(|(name, all)| Input::new(name, bytes!(all)));
        let places = [("q", self.q), ("k", self.k), ("v", self.v)];
        let tensors = self.buffers.iter().enumerate().map(|(buffer, bits)| {
            let own = places.iter().filter(|(_, place)| place.buffer == buffer).map(|(name, _)| *name);
            Input::new(own.collect::<String>(), bytes!(bits))
        });
        let cache = self.cache.iter().flat_map(Cache::inputs);
        let slopes = self.slopes.iter().map(|slopes| Input::new("alibi_slopes", bytes!(slopes.values())));
        let extras = self.extras.buffers().into_iter().map(|(name, bytes)| Input::new(name, bytes));
        integers.chain(tensors).chain(cache).chain(slopes).chain(extras).collect()
    }

    fn outputs(&self) -> Vec<Buffer> {
        let rows = self.lse_shape().iter().product::<usize>();
        let values = self.rows.named().map(|(name, _)| guarded(name, rows * 4));
        std::iter::once(guarded("o", self.o.span() * 2)).chain(values).collect()
    }

    fn wants_counters(&self) -> bool {
        self.cache.as_ref().is_none_or(|cache| cache.case.counters)
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], options: LaunchOptions<'a>) -> AnyRequest<'a> {
        let mut places = outputs.iter().map(|address| address + GUARD as u64);
        let mut next = || places.next().unwrap_or(0);
        let (o, shape) = (next(), self.lse_shape());
        let view = |address| LseView::contiguous(address, shape.iter().product::<usize>() as u64, shape);
        let places = RowOutputs { lse: options.wants_lse, ..self.rows }.map(|_, wanted| (wanted, next()));
        let mut request = self.request(inputs, o, places.lse.1);
        (request.config, request.scratch) = (options.config, options.scratch);
        let rows = places.map(|_, (wanted, address)| wanted.then(|| view(address)));
        AnyRequest::Attention(request.with_rows(rows))
    }

    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        let round = |told: &Told| {
            let all = self.integers(*told).into_iter().enumerate();
            all.map(|(at, (_, array))| (at, bytes!(array))).collect()
        };
        self.told.iter().map(round).collect()
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let (place, dtype) = (self.written(), self.problem.o_dtype);
        let [batches, rows, heads, columns] = place.shape;
        let outcome = Outcome::new(self, written, rows, true);
        let row = |index| &outcome.o()[place.row(index)..][..columns];
        let o = (0..batches * rows * heads).flat_map(row).map(|bits| decode(dtype, *bits)).collect();
        Some(Rows { dtype, columns, o, lse: self.written_values(&outcome.lse()) })
    }

    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError> {
        let rounds = self.told.iter().map(|told| Ok((self.rows_written(*told), self.expected(*told, rule)?)));
        let rounds = rounds.collect::<Result<Vec<_>, TensorError>>()?;
        Ok(Box::new(move |round, written| {
            let (rows, expected) = &rounds[round];
            let outcome = Outcome::new(self, written, *rows, true);
            let judged =
                expected.iter().flatten().map(|expected| expected.judge(&outcome, self.problem.o_dtype));
            judged.fold(outcome.outside(), crate::work::Judgement::and)
        }))
    }
}
