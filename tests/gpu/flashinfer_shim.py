"""FlashInfer's functions for decoding, pages, merging and sinks on torch tensors, through FerroFlash's C ABI.

Arguments are FlashInfer's, in its order. Log-sum-exps are (rows, heads) to base 2. A plan converts page indices from CSR into a
padded table on the device. Like FlashInfer's plan, it reads the largest number of pages of a sequence on the host. If a graph
may be captured, it does not: a row of the table then has room for all pages. A run waits for nothing.

FerroFlash's kernels run:
- all wrappers of batches. With `use_tensor_cores` or a fixed split size, decoding uses the batch-invariant mode with splits of
  that size (default: SPLIT keys). Otherwise the library chooses the splits.
- sinks. Decode kernels include them: with equal numbers of queries, and at most 64 rows per key head. Otherwise a merge adds
  them to the result of attention.
- `append_paged_kv_cache`, `merge_state`, `merge_state_in_place`, `merge_states`.
- `single_decode_with_kv_cache` with `use_tensor_cores` or scales.

PyTorch computes in float32 what tests use as expected results:
- `single_decode_with_kv_cache` otherwise.
- the prefix and the merge of the two wrappers with a shared prefix. Tests compare `MultiLevelCascadeAttentionWrapper` with them.
- `plain_merge_state` and similar functions, which replace FlashInfer's Triton kernels.
"""
import math

import torch

from ferroflash import Unsupported, _devices, kvcache, merge, varlen
from ferroflash.planned import masked

LOG2_E = math.log2(math.e)
# Keys per split in the batch-invariant mode, and a split size that no sequence exceeds.
SPLIT, WHOLE = 256, 1 << 20
# Decode kernels take up to this number of rows per key head. Prefill kernels take varlen queries and more rows.
DECODED_ROWS = 64


def check(pos_encoding_mode="NONE", **options):
    """Refuses every option that affects FerroFlash's result."""
    if pos_encoding_mode != "NONE":
        raise Unsupported(f"pos_encoding_mode {pos_encoding_mode}: attention rotates nothing; an append does")
    idle = {"q_data_type", "kv_data_type", "data_type", "o_data_type", "non_blocking", "rope_scale", "rope_theta",
            "use_fp16_qk_reduction", "backend", "jit_args", "jit_kwargs", "enable_pdl", "head_dim_vo"}
    for name, value in options.items():
        if name not in idle and value is not None:
            raise Unsupported(f"{name}: FerroFlash has no such option")


def pages(kv, layout):
    """A cache's keys and values as [pages, page, heads, head_dim]."""
    halves = kv if isinstance(kv, (tuple, list)) else kv.unbind(1)
    halves = [t.unsqueeze(-3 if layout == "NHD" else -2) if t.dim() == 3 else t for t in halves]
    k, v = (t.transpose(1, 2) if layout == "HND" else t for t in halves)
    if _devices.name(k.dtype) not in _devices.CACHES:
        raise Unsupported(f"caches of {k.dtype} are not supported")
    return k, v


def plain(q, k, v, scale=None, softcap=0.0, causal=False):
    """Attention of q [rows, heads, head_dim] on k, v [keys, heads_k, head_dim] in float32: o, and lse [rows, heads] to base 2."""
    k, v = (t.float().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1) for t in (k, v))
    scores = q.float().transpose(0, 1) @ k.transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        rows, keys = scores.shape[1:]
        scores = scores.masked_fill(torch.ones(rows, keys, dtype=torch.bool, device=q.device).triu(1 + keys - rows), -math.inf)
    o = torch.softmax(scores, -1) @ v
    return o.transpose(0, 1).to(q.dtype), torch.logsumexp(scores, -1).t() * LOG2_E


def plain_merge_states(v, s):
    """Merges states v [rows, states, heads, head_dim], s [rows, states, heads] to base 2, in float32."""
    merged = torch.logsumexp(s.float() / LOG2_E, 1)
    weights = torch.exp(s.float() / LOG2_E - merged[:, None])
    return (weights[..., None] * v.float()).sum(1).to(v.dtype), merged * LOG2_E


def plain_merge_state(v_a, s_a, v_b, s_b):
    return plain_merge_states(torch.stack((v_a, v_b), 1), torch.stack((s_a, s_b), 1))


def plain_merge_state_in_place(v, s, v_other, s_other):
    for own, merged_one in zip((v, s), plain_merge_state(v, s, v_other, s_other)):
        own.copy_(merged_one)


def plain_variable_length_merge_states(v, s, indptr):
    """Merges states of v [states, heads, head_dim] and s [states, heads]: row i has states indptr[i] .. indptr[i + 1] - 1."""
    ends = indptr.tolist()
    rows = [plain_merge_states(v[None, begin:end], s[None, begin:end]) for begin, end in zip(ends, ends[1:])]
    return tuple(torch.cat(parts) for parts in zip(*rows))


def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", pos_encoding_mode="NONE", use_tensor_cores=False, q_scale=None,
                                k_scale=None, v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None,
                                return_lse=False, **options):
    check(pos_encoding_mode, q_scale=q_scale, window_left=None if window_left < 0 else window_left, **options)
    k, v = (t.transpose(0, 1) if kv_layout == "HND" else t for t in (k, v))
    if not use_tensor_cores and k_scale is None and v_scale is None:
        o, lse = plain(q[None], k, v, sm_scale, logits_soft_cap or 0.0)
    else:
        length = torch.full((1,), k.shape[0], dtype=torch.int32, device=q.device)
        o, lse = on_pages(q[None], k[None], v[None], length, scale=sm_scale, softcap=logits_soft_cap, scales=(k_scale, v_scale))
    return (o[0], lse[0]) if return_lse else o[0]


def on_pages(q, k, v, lengths, *, table=None, starts=None, longest=1, causal=True, window_left=-1, scale=None, softcap=None,
             scales=(None, None), sinks=None, split_keys=0, out=None):
    """Attention of varlen q on pages: o, and lse [rows, heads] to base 2. Without `starts`, each sequence has `longest` queries."""
    if k.dtype == torch.float8_e4m3fn:
        scales = tuple(1.0 if scale is None else scale for scale in scales)
    elif scales != (None, None):
        raise Unsupported("k_scale, v_scale: a cache of 16 bits has no scales")
    mask, window = masked(causal, (window_left, -1))
    o = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device) if out is None else out
    options = {"table": table, "mask": mask, "window": window, "scale": scale, "softcap": softcap or 0.0, "scales": scales}
    if starts is None:
        batch = lengths.shape[0]
        lse = torch.empty(batch, q.shape[1], longest, dtype=torch.float32, device=q.device)
        of_each = lambda t: t.unflatten(0, (batch, longest))
        kvcache.Launch(of_each(q), k, v, of_each(o), lengths, lse=lse, sinks=sinks, split_keys=split_keys, **options).enqueue()
        return o, lse.transpose(1, 2).flatten(0, 1) * LOG2_E
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    kvcache.Launch(q, k, v, o, lengths, lse=lse, cu_seqlens_q=starts, seqlen_q=longest, **options).enqueue()
    return with_sinks(o, lse, sinks)


def with_sinks(o, lse, sinks):
    """Adds sinks to o and natural lse [heads, rows] of attention: o, and lse [rows, heads] to base 2."""
    if sinks is not None:
        merge.prepare(o, [(o, lse)], lse, sinks)()
    return o, lse.t() * LOG2_E


class Table:
    """A block table with rows of `columns` pages, and the keys of each sequence, on the device. Updates are in place."""

    def __init__(self, batch, columns, device):
        # The last row collects pages that belong to no sequence.
        self.rows = torch.empty(batch + 1, max(columns, 1), dtype=torch.int32, device=device)
        self.numbers, self.lengths = self.rows[:batch], torch.empty(batch, dtype=torch.int32, device=device)

    def write(self, indptr, indices, lengths):
        device = self.rows.device
        indptr, indices = (t.to(device, torch.int32, non_blocking=True) for t in (indptr, indices))
        at = torch.arange(indices.shape[0], dtype=torch.int32, device=device)
        row = torch.searchsorted(indptr[1:], at, right=True)
        self.rows[row, at - indptr[row]] = indices
        self.lengths.copy_(lengths, non_blocking=True)


def tabled(table, columns, indptr, indices, lengths, device, host=None):
    """The table of a plan: the existing table if its `columns` are fixed, else a new one."""
    batch = indptr.shape[0] - 1
    if columns is None:
        host = indptr.cpu() if host is None else host
        # `indices` may have old entries past the last sequence.
        table, indices = None, indices[:int(host[-1])]
        columns = int((host[1:] - host[:-1]).max())
    if table is None or table.lengths.shape[0] != batch:
        table = Table(batch, columns, device)
    table.write(indptr, indices, lengths)
    return table


def lengths_of(indptr, last_page_len, page_size, device):
    """The keys of each sequence, on the device."""
    indptr, last = (t.to(device, torch.int32, non_blocking=True) for t in (indptr, last_page_len))
    return get_seq_lens(indptr, last, page_size)


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False,
                 paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, **options):
        check(**options)
        self.device, self.layout, self.use_tensor_cores = float_workspace_buffer.device, kv_layout, use_tensor_cores
        self.columns, self.table = paged_kv_indices_buffer.numel() if use_cuda_graph else None, None

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, pos_encoding_mode="NONE",
             window_left=-1, logits_soft_cap=None, *, sm_scale=None, fixed_split_size=None, disable_split_kv=False,
             q_len_per_req=1, global_override_indptr_cpu=None, **options):
        check(pos_encoding_mode, **options)
        lengths = lengths_of(indptr, last_page_len, page_size, self.device)
        self.table = tabled(self.table, self.columns, indptr, indices, lengths, self.device, global_override_indptr_cpu)
        default = SPLIT if self.use_tensor_cores else 0
        self.options = {"longest": q_len_per_req, "window_left": window_left, "scale": sm_scale, "softcap": logits_soft_cap,
                        "split_keys": WHOLE if disable_split_kv else fixed_split_size or default}

    def run(self, q, paged_kv_cache, *, k_scale=None, v_scale=None, out=None, return_lse=False, sinks=None, **options):
        check(**options)
        o, lse = on_pages(q, *pages(paged_kv_cache, self.layout), self.table.lengths, table=self.table.numbers, sinks=sinks,
                          scales=(k_scale, v_scale), out=out, **self.options)
        return (o, lse) if return_lse else o

    def run_return_lse(self, q, paged_kv_cache, **options):
        return self.run(q, paged_kv_cache, return_lse=True, **options)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    def __init__(self, workspace_buffer, indptr_buffer, indices_buffer, last_page_len_buffer, kv_layout="NHD",
                 use_tensor_cores=False):
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer, last_page_len_buffer)


def fast_decode_plan(wrapper, *args, **options):
    """A plan that takes `global_override_indptr_cpu` instead of reading the device."""
    type(wrapper).plan(wrapper, *args, **options)


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, **options):
        # A plan repeats the options that the attention with sinks gets here.
        check(use_cuda_graph=use_cuda_graph or None,
              **{name: value for name, value in options.items() if name not in ("head_dim_qk", "window_left")})
        self.device, self.layout = float_workspace_buffer.device, kv_layout

    def plan(self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
             head_dim_qk, page_size, *, causal=False, pos_encoding_mode="NONE", sm_scale=None, window_left=-1,
             logits_soft_cap=None, **options):
        check(pos_encoding_mode, **options)
        lengths = lengths_of(paged_kv_indptr, paged_kv_last_page_len, page_size, self.device)
        self.table = tabled(None, None, paged_kv_indptr, paged_kv_indices, lengths, self.device)
        starts, longest, equal = queries(qo_indptr, self.device)
        decoded = equal and longest * num_qo_heads // num_kv_heads <= DECODED_ROWS
        self.options = {"starts": None if decoded else starts, "longest": longest, "causal": causal,
                        "window_left": window_left, "softcap": logits_soft_cap}
        self.scale = sm_scale

    def run(self, q, paged_kv_cache, sinks=None, sm_scale=None, *, k_scale=None, v_scale=None, out=None, return_lse=False):
        o, lse = on_pages(q, *pages(paged_kv_cache, self.layout), self.table.lengths, table=self.table.numbers, sinks=sinks,
                          scale=self.scale if sm_scale is None else sm_scale, scales=(k_scale, v_scale), out=out, **self.options)
        return (o, lse) if return_lse else o


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """A wrapper whose `run` takes sinks and a scale."""


class BatchPrefillWithRaggedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", **options):
        check(kv_layout=None if kv_layout == "NHD" else kv_layout, **options)
        self.device = float_workspace_buffer.device

    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, causal=False, pos_encoding_mode="NONE",
             window_left=-1, logits_soft_cap=None, sm_scale=None, **options):
        check(pos_encoding_mode, **options)
        (starts, longest, _), (ends, longest_k, _) = (queries(of, self.device) for of in (qo_indptr, kv_indptr))
        self.where = starts, ends, longest, longest_k
        mask, window = masked(causal, (window_left, -1))
        self.options = {"mask": mask, "window": window, "softcap": logits_soft_cap or 0.0}
        self.scale = sm_scale

    def run(self, q, k, v, sinks=None, sm_scale=None, *, out=None, lse=None, return_lse=False):
        o = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device) if out is None else out
        sums = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
        varlen.Launch(q, k, v, o, *self.where, lse=sums, scale=self.scale if sm_scale is None else sm_scale,
                      **self.options).enqueue()
        o, sums = with_sinks(o, sums, sinks)
        sums = sums if lse is None else lse.copy_(sums)
        return (o, sums) if return_lse else o

    def run_return_lse(self, q, k, v, **options):
        return self.run(q, k, v, return_lse=True, **options)


def queries(indptr, device):
    """cu_seqlens on the device; the rows of the longest sequence; whether all sequences have equal numbers of rows."""
    lengths = (indptr[1:] - indptr[:-1]).tolist()
    return indptr.to(device, torch.int32), max(lengths), len(set(lengths)) == 1


class MultiLevelCascadeAttentionWrapper:
    def __init__(self, num_levels, float_workspace_buffer, kv_layout="NHD"):
        self.levels = [BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout) for _ in range(num_levels)]

    def plan(self, qo_indptr, kv_indptr, kv_indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
             causal=False, **options):
        for i, level in enumerate(self.levels):
            level.plan(qo_indptr[i], kv_indptr[i], kv_indices[i], last_page_len[i], num_qo_heads, num_kv_heads, head_dim,
                       page_size, causal=causal and i == len(self.levels) - 1, **options)

    def run(self, q, paged_kv_cache):
        (o, lse), *others = (level.run(q, paged_kv_cache, return_lse=True) for level in self.levels)
        for other in others:
            merge_state_in_place(o, lse, *other)
        return o


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self.layout, self.unique = kv_layout, BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    def begin_forward(self, *args):
        self.args = args

    def forward(self, q, k_shared, v_shared, unique_kv_cache, causal=False, **options):
        self.unique.plan(*self.args, causal=causal, **options)
        k, v = (t.transpose(0, 1) if self.layout == "HND" else t for t in (k_shared, v_shared))
        return plain_merge_state(*plain(q, k, v), *self.unique.run(q, unique_kv_cache, return_lse=True))[0]


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper(BatchPrefillWithSharedPrefixPagedKVCacheWrapper):
    def begin_forward(self, indptr, *args):
        super().begin_forward(torch.arange(indptr.shape[0], dtype=torch.int32), indptr, *args)


def get_seq_lens(kv_indptr, kv_last_page_len, page_size):
    return (kv_indptr[1:] - kv_indptr[:-1] - 1).clamp(min=0) * page_size + kv_last_page_len


def get_batch_indices_positions(append_indptr, seq_lens, nnz):
    """The sequence of each new token, and its position there. New tokens are the last of their sequence."""
    at = torch.arange(nnz, dtype=torch.int32, device=append_indptr.device)
    indptr = append_indptr.to(torch.int32)
    batch = torch.searchsorted(indptr[1:], at, right=True)
    return batch.to(torch.int32), (seq_lens[batch] - (indptr[1:][batch] - at)).to(torch.int32)


def append_paged_kv_cache(append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
                          kv_last_page_len, kv_layout="NHD"):
    k, v = pages(paged_kv_cache, kv_layout)
    page = k.shape[1]
    numbers = kv_indices[kv_indptr[batch_indices].long() + positions // page].long()
    kvcache.append(append_key, append_value, k, v, numbers * page + positions % page)()


def merged(states, out=None):
    """Merges states (v [rows, heads, head_dim], s [rows, heads] to base 2) into `out` or a new tensor."""
    v, s = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in states[0]) if out is None else out
    merge.prepare(v, [(v_of, s_of.t()) for v_of, s_of in states], s.t(), unit=merge.BASE_TWO)()
    return v, s


def merge_state(v_a, s_a, v_b, s_b):
    return merged([(v_a, s_a.float()), (v_b, s_b.float())])


def merge_state_in_place(v, s, v_other, s_other, mask=None):
    """Merges in place. Rows outside of `mask` do not change: for them, the other state has seen no key."""
    s_other = s_other if mask is None else s_other.masked_fill(~mask[:, None], -math.inf)
    merged([(v, s), (v_other, s_other)], (v, s))


def merge_states(v, s):
    return merged(list(zip(v.unbind(1), s.float().unbind(1))))
