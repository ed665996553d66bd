"""Calls of FlashInfer, planned before. Each function raises ImportError if FlashInfer is not installed."""
import torch

PAGE = 16  # keys of a page in caches of decode and cascade


def scratch():
    return torch.empty(128 << 20, dtype=torch.uint8, device="cuda")


def integers(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def starts(counts):
    """Returns where each sequence's part begins, and the end of the last part."""
    return integers([sum(counts[:b]) for b in range(len(counts) + 1)])


def last(keys):
    """Returns the number of keys in the last page."""
    return (keys - 1) % PAGE + 1


def decode(q, cache, lengths, window, softcap):
    """Returns a decode call on one cache: q (batch, 1, heads, dim), `lengths` keys of each sequence."""
    import flashinfer
    pages = [-(-keys // PAGE) for keys in lengths]
    indices = torch.cat([row[:count] for row, count in zip(cache.table, pages)])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch(), "NHD", use_tensor_cores=True)
    wrapper.plan(starts(pages), indices, integers([last(keys) for keys in lengths]), q.shape[2], cache.k.shape[2], q.shape[3], PAGE,
                 window_left=window[0], logits_soft_cap=softcap, q_data_type=q.dtype)
    return lambda: wrapper.run(q[:, 0], (cache.k, cache.v))[:, None]


def cascade(q, cache, shape):
    """Returns a decode call in two levels: `shape` is (groups, common keys, own keys of each sequence)."""
    import flashinfer
    groups, common, own = shape
    batch, pages = q.shape[0], common // PAGE
    rest = cache.table.shape[1] - pages
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, scratch(), "NHD")
    wrapper.plan([starts([batch // groups] * groups), starts([1] * batch)], [starts([pages] * groups), starts([rest] * batch)],
                 [cache.table[::batch // groups, :pages].flatten(), cache.table[:, pages:].flatten()],
                 [integers([PAGE] * groups), integers([last(own)] * batch)], q.shape[2], cache.k.shape[2], q.shape[3], PAGE, causal=False,
                 q_data_type=q.dtype)
    return lambda: wrapper.run(q[:, 0], (cache.k, cache.v))[:, None]


def mla(q, pages, table, lengths, scale, values):
    """Returns a call of MLA: q (batch, queries, heads, width), pages (pages, keys, 1, width), `values` columns of values."""
    import flashinfer
    batch, queries, heads, width = q.shape
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(scratch(), backend="auto")
    wrapper.plan(starts([queries] * batch), starts([table.shape[1]] * batch), table.flatten(), lengths, heads, values, width - values,
                 pages.shape[1], queries > 1, scale, q.dtype, pages.dtype)
    rows, cache = q.flatten(0, 1), pages[:, :, 0]
    parts = rows[..., :values], rows[..., values:], cache[..., :values], cache[..., values:]
    return lambda: wrapper.run(*parts).view(batch, queries, heads, values)
