//! Reads block tables. No other file reads them.
use cuda_std::memory::{ld_global_nc_b32, ld_global_nc_b32_if};
use spec::{Cache, Element, Int8, PerHead, Tensor};
use tile::global::GlobalRows;

/// The block table's entry for the page that contains row `row` of a sequence. An out-of-range column reads
/// another entry of the table and never reads memory outside the table.
#[inline(always)]
pub(crate) fn page(cache: &Cache, sequence: u32, row: u32) -> u32 {
    if cache.table == 0 {
        return sequence;
    }
    let (column, _) = cache.page.div_rem(row);
    let entry = sequence as u64 * cache.table_stride as u64 + column.min(cache.columns - 1) as u64;
    // SAFETY: the table has `columns` entries for each sequence, as `Cache` promises; a kernel that reads the
    // table does not write it.
    unsafe { ld_global_nc_b32(cache.table + entry * 4) }
}

/// The index of the first chunk of row `row` of a sequence, for head 0, if the row lies in page `page`. An
/// invalid page index reads rows of another page and never reads memory outside the cache.
#[inline(always)]
pub(crate) fn chunk_in(cache: &Cache, page: u32, row: u32) -> u32 {
    let (_, within) = cache.page.div_rem(row);
    page.min(cache.pages - 1) * cache.page_chunks + within * cache.row_chunks
}

/// The index of the first chunk of row `row` of a sequence, for head 0, by the block table's page.
#[inline(always)]
pub(crate) fn chunk(cache: &Cache, sequence: u32, row: u32) -> u32 {
    chunk_in(cache, page(cache, sequence, row), row)
}

/// Number of rows of an octet: each page of several pages has whole octets.
pub const OCTET: u32 = 8;

/// The rows from row `first` on, at most [`OCTET`] and up to row `end`, of one head of a sequence. `pages`
/// are the keys, or the values, of the cache: a page is a batch. `first` is a multiple of [`OCTET`]. Rows of
/// another page do not belong to the result.
#[inline(always)]
pub fn octet<E: Element, const C: usize>(
    cache: &Cache,
    pages: &Tensor,
    [sequence, head]: [u32; 2],
    first: u32,
    end: u32,
) -> GlobalRows<E, C> {
    let ((_, within), page) = (cache.page.div_rem(first), page(cache, sequence, first).min(cache.pages - 1));
    let rows = end.saturating_sub(first).min(OCTET).min(cache.page.get() - within);
    GlobalRows::new(pages, page, head).part(within, rows)
}

/// Row `row` of a sequence with `end` rows, of one head: one row, or none. `pages` are the keys, or the
/// values, of the cache: a page is a batch. Also returns the row's slot.
#[inline(always)]
fn row<E: Element, const C: usize>(
    cache: &Cache,
    pages: &Tensor,
    [sequence, head]: [u32; 2],
    row: u32,
    end: u32,
) -> (GlobalRows<E, C>, u32) {
    let ((_, within), page) = (cache.page.div_rem(row), page(cache, sequence, row).min(cache.pages - 1));
    let rows = if row < end { 1 } else { 0 };
    (GlobalRows::new(pages, page, head).part(within, rows), page * cache.page.get() + within)
}

/// Row `at` of integers, as [`octet`] returns eight rows, and the row's scale. Both are 0 if the row does
/// not exist.
#[inline(always)]
pub fn scaled_row<const C: usize>(
    cache: &Cache,
    (pages, scales): (&Tensor, &PerHead),
    [sequence, head]: [u32; 2],
    at: u32,
    end: u32,
) -> (GlobalRows<Int8, C>, f32) {
    let (rows, slot) = row(cache, pages, [sequence, head], at, end);
    // SAFETY: the load happens only if the row exists, whose page `row` has clamped; each slot of every head
    // has a scale, at a multiple of 4, as `PerHead` promises. A kernel that reads scales writes none.
    let scale = unsafe { ld_global_nc_b32_if(crate::per_head::per_head_at(scales, slot, head), at < end) };
    (rows, f32::from_bits(scale))
}
