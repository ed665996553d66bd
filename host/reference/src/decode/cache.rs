//! The places of keys and values in a cache.
use super::{DecodeCase, DecodeMemory, Pages};
use crate::inputs::Random;
use crate::work::POISON;
use ferroflash::DType;
use ferroflash::request::{KvPages, TensorView};
use std::borrow::Cow;

/// Keys and values of a sequence in the queries' type, `[key][head][column]`. The rows of an int8 cache are
/// not multiplied by their scales.
pub(super) type Rows = [Vec<u16>; 2];

/// Scales of hidden keys: too large for their neighbours, or no numbers.
const HIDDEN: [f32; 5] = [1e6, f32::NAN, f32::INFINITY, -1.0, f32::MAX];

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
    pub(super) fn new(
        case: &DecodeCase,
        random: &mut Random,
        nobodys: usize,
        shared: impl Fn(usize) -> usize,
    ) -> Self {
        let (page, pages_of) = case.paging();
        let batch = case.filled.len();
        let count = case.filled.iter().map(|n| pages_of(*n)).sum::<usize>() + nobodys;
        let mut pages: Vec<u32> = (0..count as u32).collect();
        if !matches!(case.pages, Pages::Dense | Pages::DenseHnd) {
            random.shuffle(&mut pages);
        }
        let columns = case.max_k.div_ceil(page);
        let garbage = [u32::MAX, i32::MIN as u32, count as u32, i32::MAX as u32];
        let mut numbers: Vec<u32> = (0..batch * columns).map(|i| garbage[i % 4]).collect();
        let mut free = pages.into_iter();
        for b in 0..batch {
            for i in 0..pages_of(case.filled[b]) {
                let own = free.next().unwrap_or(0);
                numbers[b * columns + i] = if i < shared(b) { numbers[(b - 1) * columns + i] } else { own };
            }
        }
        Table { numbers, columns, count }
    }
}

impl DecodeMemory {
    /// Writes the keys and values of all sequences to their pages. All other bytes are poisoned.
    pub(super) fn laid(&self, rows: &[Vec<Vec<u16>>; 2]) -> Vec<Vec<u8>> {
        let case = &self.case;
        let ((page, _), [buffers, tensors]) = (case.paging(), case.buffers());
        let bytes = self.table.count * page * case.row() * case.cache.bytes();
        let mut pool = vec![vec![POISON; bytes * tensors]; buffers];
        for (which, view) in self.views(&[0; 2]).into_iter().enumerate() {
            for (b, rows) in rows[which].iter().enumerate() {
                for (i, row) in rows.chunks(case.head_dim).enumerate() {
                    let row = &row[..view.shape[3]];
                    let row: Vec<u8> =
                        row.iter().flat_map(|x| case.stored(*x, case.scale(which, i))).collect();
                    pool[which % buffers][self.place(&view, b, i)..][..row.len()].copy_from_slice(&row);
                }
            }
        }
        pool
    }

    /// Returns the rows of sequence `b` in `pool`, each with as many columns as a key. Values that have fewer
    /// columns end in zeros.
    pub(super) fn rows(&self, pool: &[Cow<'_, [u8]>], b: usize) -> Rows {
        let (case, views) = (&self.case, self.views(&[0; 2]));
        let bytes = case.cache.bytes();
        [0, 1].map(|which| {
            let row = |i| {
                let row = &pool[which % pool.len()][self.place(&views[which], b, i)..];
                let columns = views[which].shape[3];
                let row = row.chunks(bytes).take(columns).map(move |x| case.read(x, case.scale(which, i)));
                row.chain(std::iter::repeat_n(0, case.head_dim - columns))
            };
            (0..case.filled[b] * case.heads[1]).flat_map(row).collect()
        })
    }

    /// Returns the scales of keys (0) or of values (1): one per head, or one per row in
    /// `[pages][page][heads]` of an int8 cache. The scales of rows that belong to no sequence are poisoned.
    pub(super) fn scales(&self, which: usize) -> Vec<u8> {
        let (case, heads, (page, _)) = (&self.case, self.case.heads[1], self.case.paging());
        if case.cache != DType::Int8 {
            return case.scale(which, 0).to_ne_bytes().repeat(heads);
        }
        let mut all = vec![POISON; self.table.count * page * heads * 4];
        // Sequences may share a page, in which one of them hides a key that the other one sees.
        for hidden in [true, false] {
            for (b, filled) in case.filled.iter().enumerate() {
                let keys = (0..*filled).filter(|key| hidden == (case.poisoned_scales && case.hides(b, *key)));
                for (key, head) in keys.flat_map(|key| (0..heads).map(move |head| (key, head))) {
                    let number = self.table.numbers[b * self.table.columns + key / page] as usize;
                    let at = ((number * page + key % page) * heads + head) * 4;
                    let own = case.scale(which, key * heads + head);
                    let scale = if hidden { HIDDEN[key % HIDDEN.len()] } else { own };
                    all[at..][..4].copy_from_slice(&scale.to_ne_bytes());
                }
            }
        }
        all
    }

    /// Returns the offset of a row's first byte in the buffer of `view`, whose address is 0. `row` is the
    /// index in `[key][head]` of sequence `b`.
    fn place(&self, view: &TensorView, b: usize, row: usize) -> usize {
        let (heads, (page, _)) = (self.case.heads[1], self.case.paging());
        let (key, head) = (row / heads, row % heads);
        let number = self.table.numbers[b * self.table.columns + key / page] as usize;
        let at = [number, key % page, head].into_iter().zip(view.strides);
        let elements = at.map(|(i, stride)| i * stride as usize).sum::<usize>();
        view.address as usize + elements * self.case.cache.bytes()
    }

    /// Returns views of keys and values whose buffers start at the addresses `at`.
    pub(super) fn views(&self, at: &[u64]) -> [TensorView; 2] {
        let case = &self.case;
        let (page, _) = case.paging();
        let dtype = case.cache;
        let shapes =
            [case.head_dim, case.columns()].map(|columns| [self.table.count, page, case.heads[1], columns]);
        let elements = |shape: [usize; 4]| shape.iter().product::<usize>() as u64;
        let both = |view: fn(u64, u64, DType, [usize; 4]) -> TensorView| {
            [0, 1].map(|i| view(at[i % at.len()], elements(shapes[i]), dtype, shapes[i]))
        };
        let keys = elements(shapes[0]);
        if case.latent {
            let pages = KvPages::latent(TensorView::bshd(at[0], keys, dtype, shapes[0]), case.columns());
            return [pages.keys, pages.values];
        }
        match case.pages {
            Pages::Dense | Pages::Rows | Pages::Nhd(_) => both(TensorView::bshd),
            Pages::DenseHnd | Pages::Hnd(_) => both(TensorView::bhsd),
            // Rows of values have the strides of rows of keys, even if they have fewer columns.
            Pages::Interleaved(_) => {
                let [keys, mut values] = TensorView::interleaved(at[0], 2 * keys, dtype, shapes[0], false);
                values.shape = shapes[1];
                [keys, values]
            }
        }
    }
}
