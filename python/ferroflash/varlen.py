"""Attention on varlen sequences: tensors (rows of all sequences, heads, head_dim) and offsets on the device."""
from . import _devices
from ._library import Invalid, WrongType
from .planned import FULL, Planned, masked, sloped


class Launch(Planned):
    """One varlen attention launch on fixed tensors, on the stream that is current now.

    q and o are (rows of all sequences, heads, head_dim), k and v likewise, lse is (heads, rows); `cu_seqlens_q`,
    `cu_seqlens_k` and `seqused_k` are int32 on the device.
    """

    def __init__(self, q, k, v, o, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, lse=None,
                 seqused_k=None, mask=FULL, window=(-1, -1), scale=None, softcap=0.0, config=None, alibi_slopes=None,
                 plans=True, **extras):
        super().__init__(q, mask, window, scale, softcap, config)
        self.o, self.lse, args = o, lse, self.args
        self.kept = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "cu_seqlens_q": cu_seqlens_q,
                     "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k, "alibi_slopes": alibi_slopes}
        self.kept_extras = extras
        self.point(**self.kept)
        args.batch, args.seqlen_q, args.seqlen_k = cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_k
        args.total_q, args.heads_q, args.head_dim = q.shape
        args.total_k, args.heads_k, args.head_dim_v = *k.shape[:2], v.shape[2]
        self.strides(lse, alibi_slopes, q=q.stride(), k=k.stride(), v=v.stride(), o=o.stride())
        self.extras(**extras)
        if plans:
            self.plan_it()


def checked(q, cu_seqlens_q, alibi_slopes, **tensors):
    """Checks tensors of varlen sequences, and returns the slopes."""
    for name, tensor in {"q": q, **tensors}.items():
        if tensor.stride()[-1] != 1:
            raise Invalid(f"{name}.stride(-1) = {tensor.stride()[-1]}: it must be 1; copy {name} with .contiguous()")
    return sloped(alibi_slopes, q, cu_seqlens_q.shape[0] - 1, q.shape[1])


def launched(q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale=None,
             causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, seqused_k=None, config=None,
             plans=True, **extras):
    """Returns the launch of FlashAttention's arguments. Offsets are int32 beside q."""
    slopes = checked(q, cu_seqlens_q, alibi_slopes, k=k, v=v)
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise WrongType(f"k is {k.dtype} and v {v.dtype}; they must have the dtype of q, {q.dtype}")
    if len(q.shape) != 3 or v.shape[:2] != k.shape[:2]:
        raise Invalid(f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit together: they are "
                      "(rows of all sequences, heads, head_dim); k and v have equal rows and heads")
    mask, window = masked(causal, window_size)
    return Launch(q, k, v, o, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, lse=lse, seqused_k=seqused_k,
                  mask=mask, window=window, scale=softmax_scale, softcap=softcap, config=config, alibi_slopes=slopes,
                  plans=plans, **extras)


def prepare(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, return_lse, seqused_k=None, **options):
    """Allocates o and, if wanted, the LSE, and returns (launch, o, lse)."""
    starts, ends, used = (_devices.integers(t, q) for t in (cu_seqlens_q, cu_seqlens_k, seqused_k))
    o = q.new_empty((*q.shape[:2], v.shape[2]))
    float32 = _devices.of(q).dtype("float32")
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=float32) if return_lse else None
    launch = launched(q, k, v, o, lse, starts, ends, max_seqlen_q, max_seqlen_k, seqused_k=used, **options)
    return launch, o, lse
