//! Keys and values on a KV cache.
use super::Memory;
use crate::case::{Case, Pages, twin};
use crate::cycled::{self, Filling};
use crate::device_lengths::DeviceLengths;
use crate::extras::Extras;
use crate::inputs::Random;
use crate::place::{Layout, Place, Sharing};
use crate::work::POISON;
use ferroflash::DType;
use rayon::prelude::*;
use std::borrow::Cow;

/// Number of pages that belong to no sequence.
const FOREIGN: usize = 3;
/// Scales of hidden keys: too large for their neighbours, or no numbers.
const HIDDEN: [f32; 5] = [1e6, f32::NAN, f32::INFINITY, -1.0, f32::MAX];

/// The names of the integers of shared prefixes.
const SHARED: [&str; 5] = ["rest_lengths", "groups", "prefix_table", "prefix_lengths", "rest_table"];

/// Keys and values of a sequence in the queries' type, `[key][head][column]`. The rows of an int8 cache are
/// not multiplied by their scales.
type Rows = [Vec<u16>; 2];

/// The cache of a case.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(super) case: Case,
    /// Keys and values of all pages, in one or two buffers.
    pub(super) pool: Filling,
    pub(super) table: Table,
}

/// The block table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Page indices, `columns` per sequence. Entries behind a sequence's last page hold garbage.
    pub numbers: Vec<u32>,
    /// Number of pages of the longest sequence.
    pub columns: usize,
    /// Number of pages.
    pub count: usize,
}

impl Table {
    /// Shuffles the pages, among them pages that belong to no sequence. Sequence `b` and sequence `b - 1`
    /// have the same first `shared(b)` pages.
    fn new(case: &Case, random: &mut Random, nobodys: usize, shared: impl Fn(usize) -> usize) -> Self {
        let (page, pages_of) = case.paging();
        let count = case.filled.iter().map(|n| pages_of(*n)).sum::<usize>() + nobodys;
        let mut pages: Vec<u32> = (0..count as u32).collect();
        if !matches!(case.pages, Pages::Dense | Pages::DenseHnd) {
            random.shuffle(&mut pages);
        }
        let columns = case.max_k.div_ceil(page);
        let garbage = [u32::MAX, i32::MIN as u32, count as u32, i32::MAX as u32];
        let mut numbers: Vec<u32> = (0..case.batch() * columns).map(|i| garbage[i % 4]).collect();
        let mut free = pages.into_iter();
        for b in 0..case.batch() {
            for i in 0..pages_of(case.filled[b]) {
                let own = free.next().unwrap_or(0);
                numbers[b * columns + i] = if i < shared(b) { numbers[(b - 1) * columns + i] } else { own };
            }
        }
        Table { numbers, columns, count }
    }

    /// Returns the pages of sequence `b`.
    fn row(&self, b: usize) -> impl Iterator<Item = i32> + use<'_> {
        self.numbers[b * self.columns..][..self.columns].iter().map(|page| *page as i32)
    }
}

impl Cache {
    /// Draws standard normal inputs. Pages are shuffled. Every second sequence shares its first page with the
    /// previous sequence if both fill that page, unless the case names the pages that sequences share. Rows
    /// that belong to no sequence are NaN.
    pub(super) fn draw(case: &Case) -> Memory {
        let mut random = Random::new(case.seed);
        let (heads, key) = (case.heads[0], case.heads[1] * case.head_dim);
        let sequence = |(b, (seed, keys)): (usize, (&u64, &usize))| {
            let mut random = Random::new(*seed);
            let q = random.normals(case.dtype, case.queries_of(b) * heads * case.head_dim);
            let rows = [0, 1].map(|which| {
                let numbers = random.normals(case.kv_dtype(), keys * key).into_iter().enumerate();
                numbers.map(|(i, bits)| case.drawn(bits, which, i)).collect::<Vec<_>>()
            });
            (q, if case.latent { [rows[0].clone(), rows[0].clone()] } else { rows })
        };
        let own: Vec<_> = case.seeds.par_iter().zip(&case.filled).enumerate().map(sequence).collect();
        let (mut q, mut rows) = (vec![], [vec![], vec![]]);
        for (own, [k, v]) in own {
            q.extend(own);
            rows[0].push(k);
            rows[1].push(v);
        }
        let sinks = (0..heads).map(|_| random.normal() as f32).collect();
        let (page, pages_of) = case.paging();
        let shared = |b: usize| {
            let full = |b: usize| case.filled[b] >= page && pages_of(case.filled[b]) > 1;
            let first = !case.pages.are_whole() && b % 2 == 1 && full(b) && full(b - 1);
            if case.shared.is_some() { case.shared_with_previous(b) } else { usize::from(first) }
        };
        for (b, pages) in (0..case.batch()).map(|b| (b, shared(b))).filter(|(_, pages)| *pages > 0) {
            rows.iter_mut().for_each(|rows: &mut Vec<Vec<u16>>| {
                let shared = rows[b - 1][..pages * page * key].to_vec();
                rows[b][..shared.len()].copy_from_slice(&shared);
            });
        }
        if case.listed {
            let twins = |keys: usize| (0..keys).filter(|key| twin(*key) != *key);
            rows.iter_mut().flatten().for_each(|rows| {
                twins(rows.len() / key)
                    .for_each(|i| rows.copy_within(twin(i) * key..(twin(i) + 1) * key, i * key));
            });
        }
        let table = Table::new(case, &mut random, FOREIGN, shared);
        Self::holding(case, table, &rows).with(q, sinks)
    }

    /// Returns a cache of these keys and values of each sequence, in shuffled pages, with these queries.
    pub(crate) fn given(case: &Case, q: Vec<u16>, rows: &[Vec<Vec<u16>>; 2]) -> Memory {
        let table = Table::new(case, &mut Random::new(case.seed), FOREIGN, |_| 0);
        Self::holding(case, table, rows).with(q, vec![])
    }

    fn holding(case: &Case, table: Table, rows: &[Vec<Vec<u16>>; 2]) -> Self {
        let mut cache = Cache { case: case.clone(), pool: Filling::Laid(vec![]), table };
        cache.pool = Filling::Laid(cache.laid(rows));
        cache
    }

    /// Makes inputs for a measurement. Pages are shuffled. Every page belongs to exactly one sequence or
    /// group.
    pub(super) fn cycle(case: &Case) -> Memory {
        let mut random = Random::new(case.seed);
        let [batches, rows] = case.q_shape();
        let q = cycled::halves(case.dtype, 0, batches * rows * case.heads[0] * case.head_dim);
        let sinks = (0..case.heads[0]).map(|_| random.normal() as f32).collect();
        let table = Table::new(case, &mut random, 0, |b| case.shared_with_previous(b));
        let [buffers, tensors] = case.sharing().buffers();
        let elements = table.count * case.paging().0 * case.heads[1] * case.row_elements();
        let pool = Filling::Cycled(vec![(case.kv_dtype(), tensors * elements); buffers]);
        Cache { case: case.clone(), pool, table }.with(q, sinks)
    }

    /// Returns the memory with these queries and sinks.
    fn with(self, mut q: Vec<u16>, sinks: Vec<f32>) -> Memory {
        let (case, problem) = (&self.case, self.case.problem());
        let [batches, rows] = case.q_shape();
        let place = |columns| Place::alone(0, Layout::Bshd, [batches, rows, case.heads[0], columns]);
        let ([k, v], [of_q, o]) = (self.places(), [case.head_dim, case.columns()].map(place));
        q.resize(of_q.span(), u16::from_ne_bytes([POISON; 2]));
        let places = [of_q, k, v, o];
        let drawn = Extras::random(&problem.sinks(false), case.seed);
        let (extras, device_lengths) =
            (Extras { sinks: case.sinks.then_some(sinks), ..drawn }, case.device_lengths.clone());
        let rows = case.rows;
        Memory {
            head_maxima: self.case.head_maxima,
            padded: self.case.padded,
            extras,
            device_lengths,
            rows,
            cache: Some(self),
            ..Memory::in_places(problem, vec![q], places)
        }
    }

    /// Returns the places of keys and values. The first buffer of the cache has the number 1.
    fn places(&self) -> [Place; 2] {
        let case = &self.case;
        let shape = [self.table.count, case.paging().0, case.heads[1], case.row_elements()];
        let hnd = matches!(case.pages, Pages::DenseHnd | Pages::Hnd(_)) && case.sharing() != Sharing::Latent;
        let places = case.sharing().places(shape, case.columns(), hnd);
        places.map(|place| Place { buffer: place.buffer + 1, ..place })
    }

    /// Writes the keys and values of all sequences to their pages. All other bytes are poisoned.
    fn laid(&self, rows: &[Vec<Vec<u16>>; 2]) -> Vec<Vec<u8>> {
        let (case, places, [buffers, tensors]) = (&self.case, self.places(), self.case.sharing().buffers());
        let all = self.table.count * case.paging().0 * case.heads[1];
        let bytes = all * case.row_elements() * case.kv_dtype().bytes();
        let mut pool = vec![vec![POISON; bytes * tensors]; buffers];
        for (which, place) in places.into_iter().enumerate() {
            for (b, rows) in rows[which].iter().enumerate() {
                for (i, row) in rows.chunks(case.head_dim).enumerate() {
                    let row = case.stored_row(&row[..place.shape[3].min(row.len())], which, i);
                    pool[place.buffer - 1][self.at(&place, b, i)..][..row.len()].copy_from_slice(&row);
                }
            }
        }
        pool
    }

    /// Returns the rows of sequence `b` in `pool`.
    pub(super) fn rows(&self, pool: &[Cow<'_, [u8]>], b: usize) -> Rows {
        let (case, places) = (&self.case, self.places());
        let bytes = case.row_elements() * case.kv_dtype().bytes();
        [0, 1].map(|which| {
            let columns = [case.head_dim, case.columns()][which];
            let row = |i| {
                let at = self.at(&places[which], b, i);
                let row = &pool[places[which].buffer - 1][at..];
                case.read_row(&row[..bytes.min(row.len())], columns, which, i)
            };
            (0..case.filled[b] * case.heads[1]).flat_map(row).collect()
        })
    }

    /// Returns the scales of keys (0) or of values (1): one per head, or one per row in
    /// `[pages][page][heads]` of an int8 cache. The scales of rows that belong to no sequence are poisoned.
    pub(super) fn scales(&self, which: usize) -> Vec<u8> {
        let (case, heads, (page, _)) = (&self.case, self.case.heads[1], self.case.paging());
        if case.kv_dtype() != DType::Int8 {
            return case.scale(which, 0).to_ne_bytes().repeat(heads);
        }
        let mut all = vec![POISON; self.table.count * page * heads * 4];
        let rows = Place::alone(0, Layout::Bshd, [self.table.count, page, heads, 1]);
        // Sequences may share a page, in which one of them hides a key that the other one sees.
        for hidden in [true, false] {
            for (b, filled) in case.filled.iter().enumerate() {
                let keys = (0..*filled).filter(|key| hidden == (case.poisoned_scales && case.hides(b, *key)));
                for row in keys.flat_map(|key| (0..heads).map(move |head| key * heads + head)) {
                    let own = case.scale(which, row);
                    let scale = if hidden { HIDDEN[row / heads % HIDDEN.len()] } else { own };
                    all[4 * rows.row(self.index(b, row))..][..4].copy_from_slice(&scale.to_ne_bytes());
                }
            }
        }
        all
    }

    /// Returns the index in `[pages][page][heads]` of a row, whose index in `[key][head]` of sequence `b` is
    /// `row`.
    fn index(&self, b: usize, row: usize) -> usize {
        let (heads, (page, _)) = (self.case.heads[1], self.case.paging());
        let key = row / heads;
        let number = self.table.numbers[b * self.table.columns + key / page] as usize;
        (number * page + key % page) * heads + row % heads
    }

    /// Returns the offset of a row's first byte in its buffer.
    fn at(&self, place: &Place, b: usize, row: usize) -> usize {
        place.row(self.index(b, row)) * self.case.kv_dtype().bytes()
    }

    /// Returns the integers in device memory during a launch: `cu_seqlens_q` of a varlen batch, the keys of
    /// each sequence, and the integers of shared prefixes.
    pub(super) fn integers(&self, device_lengths: DeviceLengths) -> Vec<(&'static str, Vec<i32>)> {
        let case = &self.case;
        let starts = case.varlen_queries.iter().map(|_| ("cu_seqlens_q", case.device_starts(device_lengths)));
        let keys = match case.listed {
            true => ("indices", self.lists(device_lengths)),
            false => ("lengths", case.lengths(device_lengths)),
        };
        let own = starts.chain([keys]);
        own.chain(SHARED.into_iter().zip(self.shared(device_lengths))).collect()
    }

    /// Returns the lists of keys, `[queries, latent heads, max_k]`: the keys of each query in any order,
    /// among entries that name no key. A list names some keys twice.
    fn lists(&self, device_lengths: DeviceLengths) -> Vec<i32> {
        let (case, (page, _)) = (&self.case, self.case.paging());
        let slots = (self.table.count * page) as i32;
        let none = [-1, i32::MIN, slots, i32::MAX, -(page as i32)];
        let list = |(b, length): (usize, i32)| {
            let mut random = Random::new(case.seed ^ b as u64);
            // Edges, negative numbers, and numbers beyond all pages.
            let mut none = |i: usize| match (i % 3, random.bits() as i32) {
                (0, _) => none[i / 3 % none.len()],
                (1, bits) => bits | i32::MIN,
                (_, bits) => (bits & i32::MAX).max(slots),
            };
            let keys = (length.max(0) as usize).min(case.filled[b]);
            let slot = |i| (self.index(b, twin(i) * case.heads[1]) / case.heads[1]) as i32;
            let entry = |i| if i < keys { slot(i) } else { none(i) };
            let mut list: Vec<_> = (0..case.max_k).map(entry).collect();
            random.shuffle(&mut list);
            list.repeat(case.heads[1])
        };
        case.lengths(device_lengths).into_iter().enumerate().flat_map(list).collect()
    }

    fn shared(&self, device_lengths: DeviceLengths) -> Vec<Vec<i32>> {
        let (case, columns, table) = (&self.case, self.table.columns, &self.table);
        let (Some(shared), (page, _)) = (&case.shared, case.paging()) else { return vec![] };
        let firsts = crate::case::starts(shared.groups.iter().map(|[count, _]| *count));
        let groups = firsts.iter().take(shared.groups.len());
        let rest = (0..case.batch()).flat_map(|b| {
            let own = table.row(b).skip(shared.pages(b)).chain(std::iter::repeat(i32::MAX));
            own.take(columns).collect::<Vec<_>>()
        });
        let mut all = vec![case.rest(&case.lengths(device_lengths))];
        if shared.varlen {
            all.extend([
                firsts.iter().map(|b| (b * case.queries) as i32).collect(),
                groups.flat_map(|b| table.row(*b)).collect(),
                shared.groups.iter().map(|[_, pages]| (pages * page) as i32).collect(),
                rest.collect(),
            ]);
        }
        if let DeviceLengths::Lost(seed) = device_lengths {
            let mut random = Random::new(seed);
            let garbage = [i32::MAX, -1, i32::MIN, 0, 1, case.max_k as i32 + 1, i32::MIN + 1];
            all.iter_mut().flatten().filter(|_| random.bits().is_multiple_of(2)).for_each(|x| {
                *x = garbage[(x.unsigned_abs() as usize + seed as usize) % garbage.len()];
            });
        }
        all
    }
}
