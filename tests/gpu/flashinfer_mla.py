"""FlashInfer's wrapper for latent caches (MLA) on torch tensors, through FerroFlash's C ABI.

Arguments are FlashInfer's, in its order. FlashInfer passes a latent cache as two tensors, `ckv` and `kpe`. FerroFlash's kernels
read one tensor, whose rows are both. Neighbouring views of one tensor, such as `rows[..., :512]` and `rows[..., 512:]`, stay
where they are. Other tensors are copied into one at each run, with PyTorch: pass views to avoid the copy.

All sequences of a plan must have equal numbers of queries. `flashinfer_shim.py` describes plans.
"""
import torch

from ferroflash import Error, Unsupported, kvcache
from ferroflash.planned import CAUSAL, FULL
from flashinfer_shim import LOG2_E, check, queries, tabled


def joined(left, right):
    """Two tensors side by side in their last dimension. Neighbouring views of one tensor give a view."""
    width, row = left.shape[-1] + right.shape[-1], left.stride(-2)
    one = left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    if one and left.stride() == right.stride() and row >= width \
            and right.storage_offset() == left.storage_offset() + left.shape[-1]:
        return left.as_strided((*left.shape[:-1], width), left.stride())
    return torch.cat((left, right), -1)


class BatchMLAPagedAttentionWrapper:
    def __init__(self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None,
                 kv_len_arr=None, backend="auto"):
        self.device, self.table = float_workspace_buffer.device, None
        self.columns = kv_indices.numel() if use_cuda_graph else None

    def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal,
             sm_scale, q_data_type, kv_data_type, use_profiler=False, *, lse_mode=None, **options):
        check(use_profiler=use_profiler or None, **options)
        if kv_data_type != q_data_type or q_data_type not in (torch.float16, torch.bfloat16):
            raise Unsupported(f"kv_data_type {kv_data_type}: a latent cache has the queries' dtype, float16 or bfloat16")
        _, longest, equal = queries(qo_indptr, self.device)
        if not equal:
            raise Unsupported("qo_indptr: sequences on a latent cache must have equal query counts; make one plan per query count")
        # Both may have entries behind the last sequence.
        kv_indptr, kv_len_arr = kv_indptr[:qo_indptr.shape[0]], kv_len_arr[:qo_indptr.shape[0] - 1]
        self.table = tabled(self.table, self.columns, kv_indptr, kv_indices, kv_len_arr, self.device)
        self.longest, self.columns_v = longest, head_dim_ckv
        self.options = {"mask": CAUSAL if causal else FULL, "scale": sm_scale, "table": self.table.numbers}

    def run(self, q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, profiler_buffer=None, *,
            return_lse_base_on_e=False, **options):
        check(profiler_buffer=profiler_buffer, **options)
        if ckv_cache.shape[-1] != self.columns_v:
            raise Error(f"ckv_cache {tuple(ckv_cache.shape)}: the plan has head_dim_ckv {self.columns_v}")
        q, rows = joined(q_nope, q_pe), joined(ckv_cache, kpe_cache)[:, :, None]
        # Without rotary columns, keys and values are equal.
        values = None if kpe_cache.shape[-1] else rows
        o = torch.empty(q_nope.shape, dtype=q.dtype, device=q.device) if out is None else out
        if rows.shape[0] == 0:
            # A cache without pages: no query sees a key.
            sums = torch.full(q.shape[:2], -torch.inf, device=q.device)
            return self.results(o.zero_(), sums if lse is None else lse.copy_(sums), return_lse)
        of_each = lambda t: t.unflatten(0, (-1, self.longest))
        sums = torch.empty(self.table.lengths.shape[0], q.shape[1], self.longest, dtype=torch.float32, device=q.device)
        kvcache.Launch(of_each(q), rows, values, of_each(o), self.table.lengths, lse=sums, **self.options).enqueue()
        sums = sums.transpose(1, 2).flatten(0, 1) * (1.0 if return_lse_base_on_e else LOG2_E)
        return self.results(o, sums if lse is None else lse.copy_(sums), return_lse)

    @staticmethod
    def results(o, lse, return_lse):
        return (o, lse) if return_lse else o
