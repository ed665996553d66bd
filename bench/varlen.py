"""FlashAttention's varlen function on torch tensors, through FerroFlash's C ABI.

    from varlen import flash_attn_varlen_func
    o = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True)

cu_seqlens stays on the device. No call waits for it, and a captured graph stays valid when it changes.
"""
import torch

from ferroflash import DTYPES, FULL, Error, Planned, Unsupported, like_flash_attn, masked, sloped
from kvcache import flash_attn_with_kvcache


class Launch(Planned):
    """One varlen attention launch on fixed tensors, on the stream that is current now.

    q and o are (rows of all sequences, heads, head_dim), k and v likewise, lse is (heads, rows); `cu_seqlens_q`,
    `cu_seqlens_k` and `seqused_k` are int32 on the device.
    """

    def __init__(self, q, k, v, o, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, lse=None, seqused_k=None,
                 mask=FULL, window=(-1, -1), scale=None, softcap=0.0, config=None, alibi_slopes=None, **extras):
        super().__init__(q, mask, window, scale, softcap, config)
        self.o, self.lse, args = o, lse, self.args
        self.kept = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
                     "seqused_k": seqused_k, "alibi_slopes": alibi_slopes}
        self.kept_extras = extras
        self.point(**self.kept)
        args.batch, args.seqlen_q, args.seqlen_k = cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_k
        args.total_q, args.heads_q, args.head_dim = q.shape
        args.total_k, args.heads_k, args.head_dim_v = *k.shape[:2], v.shape[2]
        self.strides(lse, alibi_slopes, q=q.stride(), k=k.stride(), v=v.stride(), o=o.stride())
        self.extras(**extras)
        self.plan_it()


def integers(tensor, device):
    """Returns offsets or lengths as int32 on the device; None stays None."""
    return None if tensor is None else tensor.to(device=device, dtype=torch.int32).contiguous()


def checked(q, k, v, cu_seqlens_q, alibi_slopes):
    """Checks tensors of varlen sequences, and returns the slopes."""
    if q.dtype not in DTYPES or any(t.stride(-1) != 1 for t in (q, k, v)):
        raise Error("tensors must be float16 or bfloat16, columns contiguous")
    return sloped(alibi_slopes, q, cu_seqlens_q.shape[0] - 1, q.shape[1])


def enqueued(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, wants_lse, softmax_scale=None, causal=False,
             window_size=(-1, -1), softcap=0.0, alibi_slopes=None, seqused_k=None, config=None, **extras):
    """Allocates o and, if wanted, the LSE, enqueues the launch and returns it. The arguments are flash_attn_varlen_func's."""
    slopes = checked(q, k, v, cu_seqlens_q, alibi_slopes)
    if k.dtype != q.dtype or v.dtype != q.dtype or v.shape[:2] != k.shape[:2]:
        raise Error(f"k {tuple(k.shape)} and v {tuple(v.shape)} must have equal rows and heads, and q's type")
    starts, ends, used = (integers(t, q.device) for t in (cu_seqlens_q, cu_seqlens_k, seqused_k))
    mask, window = masked(causal, window_size)
    o = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device) if wants_lse else None
    launch = Launch(q, k, v, o, starts, ends, max_seqlen_q, max_seqlen_k, lse=lse, seqused_k=used, mask=mask, window=window,
                    scale=softmax_scale, softcap=softcap, config=config, alibi_slopes=slopes, **extras)
    launch.enqueue()
    return launch


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, *, seqused_k=None,
                           return_lse=False, config=None, **extras):
    """Computes attention of varlen sequences. q, k and v are (rows of all sequences, heads, head_dim). Masks are aligned bottom-right.
    v may have another head_dim than q and k; o has the head_dim of v.

    The arguments are FlashAttention-2's, in its order. With `block_table`, k and v are a cache (pages, page, heads_k,
    head_dim), and sequence b has cu_seqlens_k[b + 1] - cu_seqlens_k[b] keys. `seqused_k` is the number of valid keys of each
    sequence. `alibi_slopes` are (heads) or (batch, heads) in float32. `deterministic` changes nothing, because results are
    always equal in every bit. Dropout is refused. There are no gradients (training.py has them). Rows of o that belong to no sequence are not written.
    `extras` are the arguments of ferroflash.Planned.extras.

    Returns o; with return_lse (o, lse); with return_attn_probs (o, lse, None), as FlashAttention-2 does without dropout. lse
    is (heads, rows) in float32. For a row without a key it is -inf, or with return_attn_probs +inf, as in FlashAttention-2.
    """
    if dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p}: FerroFlash has no dropout; it must be 0.0")
    wants_lse = return_lse or return_attn_probs
    if block_table is None:
        launch = enqueued(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, wants_lse=wants_lse,
                          softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                          alibi_slopes=alibi_slopes, seqused_k=seqused_k, config=config, **extras)
        o, lse = launch.o, like_flash_attn(launch.lse) if return_attn_probs else launch.lse
    else:
        slopes = checked(q, k, v, cu_seqlens_q, alibi_slopes)
        starts, ends, used = (integers(t, q.device) for t in (cu_seqlens_q, cu_seqlens_k, seqused_k))
        used = ends[1:] - ends[:-1] if used is None else used
        out = flash_attn_with_kvcache(
            q, k, v, cache_seqlens=used, block_table=block_table, softmax_scale=softmax_scale, causal=causal,
            window_size=window_size, softcap=softcap, return_softmax_lse=wants_lse, cu_seqlens_q=starts,
            max_seqlen_q=max_seqlen_q, config=config, alibi_slopes=slopes, **extras)
        o, lse = out if wants_lse else (out, None)
        if return_lse and not return_attn_probs:
            lse = lse.masked_fill_(lse == float("inf"), float("-inf"))
    if return_attn_probs:
        return o, lse, None
    return (o, lse) if return_lse else o
