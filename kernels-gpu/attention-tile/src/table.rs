//! Reads block tables. No other file reads them.
use cuda_std::memory::ld_global_nc_b32;
use spec::Cache;

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
