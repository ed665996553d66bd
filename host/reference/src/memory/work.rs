//! Attention problems on a device.
use super::Memory;
use super::Place;
use super::cache::Cache;
use super::outcome::Outcome;
use super::padded;
use crate::arithmetic::decode;
use crate::case::Pages;
use crate::device_lengths::DeviceLengths;
use crate::tensor::TensorError;
use crate::tolerance::Rule;
use crate::work::{Binder, Judge, LaunchOptions, Rows, Work, Written};
use ferroflash::DType;
use ferroflash::plan::{AnyRequest, Problem};
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, Level, ListedKeys, LseView, Precision, Queries,
    RowOutputs, Scores, SharedPrefixes, Sinks, TensorView, TokenScales, VarlenKeys, VarlenQueries,
};
use ferroflash::spec::EXTRAS;

impl Memory {
    /// Returns the integers in device memory during a launch.
    fn integers(&self, device_lengths: DeviceLengths) -> impl Iterator<Item = (&'static str, Vec<i32>)> {
        let of_tensors = self
            .sequences
            .iter()
            .flat_map(move |sequences| sequences.device_lengths(device_lengths).into_arrays());
        of_tensors.chain(self.cache.iter().flat_map(move |cache| cache.integers(device_lengths)))
    }

    /// Returns the request in device memory. O is at `o`, and a contiguous LSE is at `lse`.
    pub fn request(&self, binder: &mut Binder<'_>, o: u64, lse: u64) -> AttentionRequest<'static> {
        let Problem { dtype, kv_dtype, o_dtype, mask, alignment, scale, softcap, .. } = self.problem;
        let integers = self.integers(self.device_lengths[binder.round()]).collect();
        let integers = if self.padded { padded::joined(integers) } else { integers };
        let mut integers: Vec<_> = integers
            .into_iter()
            .map(|(name, all)| Index::new(binder.changing(name, || bytes!(all)), all.len() as u64))
            .collect();
        let seqused_q = if self.padded { integers.pop() } else { None };
        let places = [("q", self.q), ("k", self.k), ("v", self.v)];
        let tensors = self.buffers.iter().enumerate().map(|(buffer, bits)| {
            let own = places.iter().filter(|(_, place)| place.buffer == buffer).map(|(name, _)| *name);
            let bytes = || match dtype.bytes() {
                1 => bits.iter().map(|bits| *bits as u8).collect(),
                _ => bytes!(bits),
            };
            (binder.input(&own.collect::<String>(), bytes), bits.len())
        });
        let tensors: Vec<_> = tensors.collect();
        let tensor = |place: &Place, dtype| {
            let (base, elements) = tensors[place.buffer];
            place.view(base, elements, dtype)
        };
        let (q, o) = (tensor(&self.q, dtype), self.o.view(o, self.o.span(), o_dtype));
        let kv = || [tensor(&self.k, kv_dtype), tensor(&self.v, kv_dtype)];
        let mut request = match (&self.cache, &self.sequences, &integers[..]) {
            (Some(cache), ..) => self.on_cache(cache, [q, o], &integers, binder),
            (None, Some(sequences), [starts_q, starts_k, used @ ..]) => {
                let ([k, v], keys) = (kv(), VarlenKeys::new(*starts_k, self.problem.seqlen_k));
                let keys = used.iter().fold(keys, |keys, used| keys.seqused_k(*used));
                let queries = VarlenQueries::new(sequences.count(), *starts_q, self.problem.seqlen_q);
                AttentionRequest::varlen(q, k, v, o, queries, keys)
            }
            _ => {
                let [k, v] = kv();
                AttentionRequest::dense(q, k, v, o)
            }
        };
        if let Some(used) = seqused_q {
            let rows = self.cache.as_ref().map_or(&[][..], |cache| &cache.table.numbers);
            padded::join(&mut request, used, rows, binder);
        }
        let mut scores = Scores::new().softcap(softcap.unwrap_or_default());
        scores.scale = scale;
        let shape = self.lse_shape();
        let lse = LseView::contiguous(lse, shape.iter().product::<usize>() as u64, shape);
        let mut request = request.mask(mask).alignment(alignment).scores(scores).lse(lse);
        self.extras.give(&mut request, binder);
        request.variant = self.variant;
        request.invariance = self.problem.invariance;
        request.precision(self.problem.precision)
    }

    fn on_cache(
        &self,
        cache: &Cache,
        [q, o]: [TensorView; 2],
        integers: &[Index],
        binder: &mut Binder<'_>,
    ) -> AttentionRequest<'static> {
        let (Cache { case, table, .. }, [page, heads]) =
            (cache, [cache.case.paging().0, cache.case.heads[1]]);
        let [count, tensors] = case.sharing().buffers();
        let pool = cache.pool.add(["cache"; 2].into_iter().take(count), binder);
        let rows = table.count * page * heads;
        let pages = [&self.k, &self.v].map(|place| {
            place.view(pool[place.buffer - 1], tensors * rows * case.row_elements(), case.kv_dtype())
        });
        // The table of padded queries ends with the last sequence's row: padding has none.
        let numbers = &table.numbers[..table.numbers.len() - if self.padded { table.columns } else { 0 }];
        let entries = Index::new(binder.input("table", || bytes!(numbers)), numbers.len() as u64);
        let mut scale = |which| binder.input(["k_scale", "v_scale"][which], || cache.scales(which));
        let pages = match case.kv_dtype() {
            // The scales of keys are in device memory, one per head. The scale of values is a number.
            DType::E4m3 => {
                let k = KvScale::Device { address: scale(0), elements: heads as u64, strides: [0, 1] };
                let v = if case.latent { KvScale::One } else { KvScale::Value(case.scale(1, 0)) };
                KvPages::new(pages[0], pages[1]).scales(k, v)
            }
            DType::Int8 => {
                let [k, v] = [0, 1].map(|which| TokenScales::contiguous(scale(which), rows as u64, heads));
                KvPages::int8(pages[0], pages[1], k, v)
            }
            _ => KvPages::new(pages[0], pages[1]),
        };
        if case.listed {
            let keys = ListedKeys::new(pages, integers[0], case.max_k);
            return AttentionRequest::sparse(q, keys, o).splits(case.splits);
        }
        let (starts, rest) = integers.split_at(usize::from(case.varlen_queries.is_some()));
        let (lengths, shared) = (rest[0], &rest[1..]);
        let kv = match case.pages {
            Pages::Nhd(_) | Pages::Hnd(_) | Pages::Interleaved(_) => {
                KvCache::paged(pages, entries, table.columns, lengths)
            }
            Pages::Rows => KvCache::dense(pages, lengths).rows(entries),
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
}

impl Work for Memory {
    fn wants_counters(&self) -> bool {
        self.cache.as_ref().is_none_or(|cache| cache.case.counters)
    }

    fn request<'a>(&'a self, binder: &mut Binder<'_>, options: LaunchOptions<'a>) -> AnyRequest<'a> {
        let (o, shape) = (binder.guarded("o", self.o.span() * 2), self.lse_shape());
        let elements = shape.iter().product::<usize>();
        let rows = self.rows.map(|name, _| binder.guarded(name, elements * 4));
        let mut request = self.request(binder, o, rows.lse);
        // The planner adds these kernels to any other.
        let is_extra = |name: &&str| EXTRAS.iter().any(|e| e.contract.symbol == *name);
        (request.config, request.scratch) = (options.config.filter(|name| !is_extra(name)), options.scratch);
        let wanted = RowOutputs { lse: options.wants_lse, ..self.rows };
        let view = |_, (wanted, address): (bool, u64)| {
            wanted.then(|| LseView::contiguous(address, elements as u64, shape))
        };
        if self.head_maxima {
            let heads = self.q.shape[2];
            let address = binder.guarded("max_logits_head", heads * 4);
            request.max_logits_head = Some(Sinks { address, elements: heads as u64 });
        }
        AnyRequest::Attention(request.with_rows(wanted.zip(rows).map(view)))
    }

    fn rounds(&self) -> usize {
        self.device_lengths.len()
    }

    fn rows(&self, written: &Written) -> Option<Rows> {
        let (place, dtype) = (self.written(), self.problem.o_dtype);
        let [batches, rows, heads, columns] = place.shape;
        let outcome = Outcome::new(self, written, rows, true);
        let row = |index| &outcome.o()[place.row(index)..][..columns];
        let o = (0..batches * rows * heads).flat_map(row).map(|bits| decode(dtype, *bits)).collect();
        let is_of_e4m3 = matches!(self.problem.precision, Precision::Int8Fp8 | Precision::Fp8);
        let lse = self.written_values(&outcome.lse());
        Some(Rows { dtype, columns, o, lse, tolerances: vec![], is_of_e4m3 })
    }

    fn judge(&self, rule: Rule) -> Result<Judge<'_>, TensorError> {
        let rounds = self.device_lengths.iter().map(|device_lengths| {
            Ok((self.rows_written(*device_lengths), self.expected(*device_lengths, rule)?))
        });
        let rounds = rounds.collect::<Result<Vec<_>, TensorError>>()?;
        Ok(Box::new(move |round, written| {
            let (rows, expected) = &rounds[round];
            let outcome = Outcome::new(self, written, *rows, true);
            let judged =
                expected.iter().flatten().map(|expected| expected.judge(&outcome, self.problem.o_dtype));
            judged.fold(outcome.outside(), crate::work::Judgement::and).and(outcome.of_heads())
        }))
    }
}
