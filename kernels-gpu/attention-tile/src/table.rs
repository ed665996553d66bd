//! Where a sequence's rows are: the one place that reads a table of pages.
use cuda_std::memory::ld_global_nc_b32;
use spec::Cache;

/// The page that row `row` of a sequence is in, as the table has it. A wrong column shows a number of another
/// place of the table, never memory that is not the table's.
#[inline(always)]
pub(crate) fn page(cache: &Cache, sequence: u32, row: u32) -> u32 {
    if cache.table == 0 {
        return sequence;
    }
    let (column, _) = cache.page.div_rem(row);
    let entry = sequence as u64 * cache.table_stride as u64 + column.min(cache.columns - 1) as u64;
    // SAFETY: the table has `columns` numbers for each sequence, as `Cache` promises; kernels that read it do
    // not write it.
    unsafe { ld_global_nc_b32(cache.table + entry * 4) }
}

/// First chunk of row `row` of a sequence, head 0, in page number `page`: a wrong number may show foreign
/// rows, never foreign memory.
#[inline(always)]
pub(crate) fn chunk_in(cache: &Cache, page: u32, row: u32) -> u32 {
    let (_, within) = cache.page.div_rem(row);
    page.min(cache.pages - 1) * cache.page_chunks + within * cache.row_chunks
}

/// The same in the page where the table has it.
#[inline(always)]
pub(crate) fn chunk(cache: &Cache, sequence: u32, row: u32) -> u32 {
    chunk_in(cache, page(cache, sequence, row), row)
}
