//! Random requests on KV caches with shared prefixes, or whose values have their own columns and strides.
use super::{FAR, Request, cached, varlen_on_cache, view};
use crate::drawn::Random;
use ferroflash::request::*;

/// Returns groups that the host or the device knows. A request on a dense cache has no shared pages.
pub(super) fn shared(random: &mut Random) -> Request {
    let request = cached(random, &[1, 1, 2, 4]);
    let Request::Attention(mut d, counters) = request else { return request };
    let KeysValues::Cache(KvCache { paged: Paged::Table { columns, .. }, .. }) = d.kv else {
        return Request::Attention(d, counters);
    };
    let [batch, queries, ..] = d.q.shape;
    let index = |n: u64, elements: usize| Index::new(n * FAR, elements as u64);
    let (pages, rest) = (random.one_of(&[1, columns / 2, columns / 2, columns - 1]), index(20, batch));
    let prefixes = if random.once_in(3) {
        let count = random.one_of(&[1, 3, batch]).min(batch);
        let queries = VarlenQueries::new(count, index(21, count + 1), batch * queries);
        let level = |n, rows: usize, lengths| Level::new(index(n, rows * columns), columns, lengths);
        SharedPrefixes::varlen(queries, level(22, count, index(23, count)), level(24, batch, rest))
    } else {
        let count = random.one_of(&[1, 1, 2, batch]);
        SharedPrefixes::equal(if batch.is_multiple_of(count) { count } else { 1 }, pages, rest)
    };
    // Without splits and scores that depend on positions, two passes are possible.
    if !random.once_in(6) {
        (d.splits, d.scores.alibi) = (Splits::Auto, None);
    }
    d.shared_prefixes = Some(if random.once_in(2) { prefixes.always() } else { prefixes });
    Request::Attention(d, counters)
}

/// Returns values of another number of columns than keys, in rows as long as the keys' or as long as their
/// own.
pub(super) fn of_two_widths(random: &mut Random) -> Request {
    let request =
        if random.once_in(2) { varlen_on_cache(random) } else { cached(random, &[1, 17, 128, 2048]) };
    let Request::Attention(mut d, counters) = request else { return request };
    let KeysValues::Cache(cache) = &mut d.kv else { return Request::Attention(d, counters) };
    let columns = random.one_of(&[8, 64, 64, 128, 128, 256]);
    let values = &mut cache.pages.values;
    let shape = [values.shape[0], values.shape[1], values.shape[2], columns];
    *values = match columns > values.shape[3] || random.once_in(2) {
        true => TensorView::bshd(values.address, values.elements, values.dtype, shape),
        false => TensorView { shape, ..*values },
    };
    let [batch, rows, heads, _] = d.o.shape;
    d.o = view(random, 4, d.o.dtype, [batch, rows, heads, columns]);
    Request::Attention(d, counters)
}
