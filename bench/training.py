"""FlashAttention's functions with gradients on torch tensors, through FerroFlash's C ABI.

    from training import flash_attn_func
    flash_attn_func(q, k, v, causal=True).backward(d_o)

The library needs the feature `training` (`cargo build --release --package ferroflash-cabi --features training`). The forward
writes the log-sum-exp (LSE), and the backward pass reads it. The module keeps the plans of the last layouts of each stream and
thread; torch's allocator lends the workspace for a launch. A repeated backward pass gives identical bits. Slopes get no gradient:
if they require it, the functions raise an error.
"""
import ctypes
import math
import threading
import weakref

import torch

import ferroflash
import varlen
from ferroflash import LIB, Unsupported, c


# Plans that a thread keeps. Lengths of varlen batches change at every step of a training.
KEPT = 256


class _Local(threading.local):
    """The backward passes that a thread has planned, the last one last."""

    def __init__(self):
        self.planned = {}


_local = _Local()


def layout(forward):
    """Returns a forward's arguments as bytes, in which a pointer says only whether it is set."""
    blank = c.Attention.from_buffer_copy(forward)
    for name, kind in c.Attention._fields_:
        if kind is ctypes.c_void_p:
            setattr(blank, name, 1 if getattr(blank, name) else None)
    return bytes(blank)


class Backward:
    """The backward pass of one layout on the stream that is current now: its arguments and its plan. It belongs to one thread."""

    def __init__(self, forward, device, stream, order, d_lse, dsinks, dbias, **tensors):
        self.context, self.stream = ferroflash._context(device.index), stream
        self.forward = c.Attention.from_buffer_copy(forward)
        args = self.args = c.Backward(size=ctypes.sizeof(c.Backward), forward=ctypes.addressof(self.forward))
        self.where = ctypes.addressof(args)
        for name, tensor in tensors.items():
            setattr(args, f"{name}_strides", ferroflash.padded([tensor.stride(i) for i in order], 4))
        if d_lse is not None:
            args.d_lse_strides = ferroflash.padded(d_lse.stride()[:-1], 2)
        if dbias is not None:
            args.dbias_strides = ferroflash.padded(dbias.stride()[:-1], 3)
        self.point(forward, d_lse=d_lse, dsinks=dsinks, dbias=dbias, **tensors)
        plan, info = ctypes.c_void_p(), c.PlanInfo(size=ctypes.sizeof(c.PlanInfo))
        ferroflash._check(LIB.ferroflash_backward_plan_create(self.context, self.where, ctypes.byref(plan)))
        weakref.finalize(self, LIB.ferroflash_plan_destroy, plan)
        ferroflash._check(LIB.ferroflash_plan_describe(plan, ctypes.byref(info)))
        self.plan, self.entry, self.device, args.workspace_bytes = plan, info.entry.decode(), device, info.workspace_bytes
        # The kernels must be compiled before the launch, because a graph may capture the launch.
        ferroflash._check(LIB.ferroflash_load(self.context, plan))

    def point(self, forward, **tensors):
        """Sets the forward, and the addresses of tensors."""
        ctypes.memmove(ctypes.addressof(self.forward), ctypes.addressof(forward), ctypes.sizeof(forward))
        for name, tensor in tensors.items():
            setattr(self.args, name, None if tensor is None else tensor.data_ptr())

    def enqueue(self):
        # The allocator gives this memory to later work of the same stream only.
        workspace = torch.empty(self.args.workspace_bytes, dtype=torch.uint8, device=self.device)
        self.args.workspace = workspace.data_ptr()
        ferroflash._check(LIB.ferroflash_backward_launch(self.context, self.plan, self.where, self.stream))


def gradients(forward, order, q, k, v, sinks, bias, d_o, d_lse):
    """Returns the gradients of q, k, v, sinks and bias. `sinks` or `bias` is None if its gradient is not wanted. `forward` has the
    arguments of the forward; `order` are the dimensions of batch, row, head and column."""
    stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    # No kernel writes rows that belong to no sequence.
    make = torch.zeros_like if forward.cu_seqlens_q else torch.empty_like
    tensors = {"d_o": d_o, "dq": make(q), "dk": make(k), "dv": make(v)}
    dsinks, dbias = None if sinks is None else torch.empty_like(sinks), None if bias is None else rows_like(bias)
    key = (q.device.index, stream, layout(forward), order, *(t.stride() for t in tensors.values()),
           None if d_lse is None else d_lse.stride(), dsinks is None, None if dbias is None else dbias.stride())
    launch = _local.planned.pop(key, None)
    if launch is None:
        launch = Backward(forward, q.device, stream, order, d_lse, dsinks, dbias, **tensors)
        if len(_local.planned) == KEPT:
            del _local.planned[next(iter(_local.planned))]
    _local.planned[key] = launch
    launch.point(forward, d_lse=d_lse, dsinks=dsinks, dbias=dbias, **tensors)
    launch.enqueue()
    return tensors["dq"], tensors["dk"], tensors["dv"], dsinks, dbias


def rows_like(bias):
    """Returns memory for the gradient of a bias. Kernels write its rows in words of 4 bytes."""
    *shape, keys = bias.shape
    return torch.empty(*shape, keys + keys % 2, dtype=bias.dtype, device=bias.device)[..., :keys]


def trained(bias):
    """Returns the bias. If it requires a gradient and dimensions are expanded, returns a copy: autograd sums the gradient of the
    copy, and the kernels would sum it, too."""
    expanded = bias is not None and any(n > 1 and stride == 0 for n, stride in zip(bias.shape, bias.stride()))
    return bias.contiguous() if expanded and bias.requires_grad else bias


def readable(tensor):
    """Returns the tensor, or a contiguous copy if kernels cannot read it: rows of 16 bytes, contiguous columns."""
    aligned = tensor.stride(-1) == 1 and all(stride % 8 == 0 for stride in tensor.stride()[:-1]) and tensor.data_ptr() % 16 == 0
    return tensor if aligned else tensor.clone(memory_format=torch.contiguous_format)


def of_strides(tensor, strides):
    """Returns the tensor with these strides: hooks of saved tensors may return copies with other strides."""
    if tensor.stride() == strides:
        return tensor
    whole = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    # Rows that share memory are equal, so one of them is enough.
    one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    whole[one].copy_(tensor[one])
    return whole


class Attention(torch.autograd.Function):
    """(o, lse) of q, k, v, sinks and bias, of which the last two may be None. `run(q, k, v)` enqueues the forward and returns the
    launch, o and lse. `order` are the dimensions of batch, row, head and column."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, bias, run, order):
        launch, o, lse = run(q, k, v)
        # Later calls set other addresses in the launch's own arguments.
        ctx.args, ctx.order = c.Attention.from_buffer_copy(launch.args), order
        # The backward pass has no named kernels, and the name belongs to the launch.
        ctx.args.config = None
        # `run` owns the sinks, slopes, biases and masks whose addresses the arguments have.
        ctx.run, ctx.device = run, q.device
        ctx.strides = [t.stride() for t in (q, k, v, o, lse)]
        # torch raises an error in `backward` if one of these has changed since.
        ctx.save_for_backward(q, k, v, o, lse, sinks, bias)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, d_lse):
        *saved, sinks, bias = ctx.saved_tensors
        q, k, v, o, lse = map(of_strides, saved, ctx.strides)
        forward = c.Attention.from_buffer_copy(ctx.args)
        forward.q, forward.k, forward.v, forward.o, forward.lse = (t.data_ptr() for t in (q, k, v, o, lse))
        d_o = torch.zeros_like(o) if d_o is None else readable(d_o)
        d_lse = None if d_lse is None else d_lse.contiguous()
        sinks, bias = (x if wanted else None for x, wanted in zip((sinks, bias), ctx.needs_input_grad[3:5]))
        with torch.cuda.device(ctx.device):
            return *gradients(forward, ctx.order, q, k, v, sinks, bias, d_o, d_lse), None, None


def results(o, lse, return_lse, return_attn_probs):
    """Returns what FlashAttention-2 returns. Of the LSE of `return_attn_probs` there is no gradient."""
    if return_attn_probs:
        lse = lse.detach()
        return o, lse.masked_fill(lse == -math.inf, math.inf), None
    return (o, lse) if return_lse else o


def refuse_tracked(**options):
    """Raises an error if a gradient of an option is wanted."""
    for name, option in options.items():
        if name not in ("sinks", "bias") and isinstance(option, torch.Tensor) and option.requires_grad and torch.is_grad_enabled():
            raise Unsupported(f"{name} requires a gradient: FerroFlash computes those of q, k, v, sinks and bias; pass {name}.detach()")


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, *, return_lse=False, bhsd=False, **options):
    """Computes ferroflash.flash_attn_func with gradients of q, k, v, sinks and bias. A loss may depend on the LSE of `return_lse`."""
    if dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p}: FerroFlash has no dropout; it must be 0.0")
    refuse_tracked(alibi_slopes=alibi_slopes, **options)
    options["bias"] = trained(options.get("bias"))

    def run(q, k, v):
        launch, o, lse = ferroflash.prepare(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                                            softcap=softcap, alibi_slopes=alibi_slopes, return_lse=True, bhsd=bhsd, **options)
        launch.enqueue()
        return launch, o, lse

    o, lse = Attention.apply(q, k, v, options.get("sinks"), options["bias"], run, (0, 2, 1, 3) if bhsd else (0, 1, 2, 3))
    return results(o, lse, return_lse, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, *, seqused_k=None, return_lse=False,
                           **options):
    """Computes varlen.flash_attn_varlen_func with gradients of q, k, v, sinks and bias. A cache (`block_table`) has no gradients."""
    if block_table is not None:
        return varlen.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
            softcap, alibi_slopes, deterministic, return_attn_probs, block_table, seqused_k=seqused_k, return_lse=return_lse,
            **options)
    if dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p}: FerroFlash has no dropout; it must be 0.0")
    refuse_tracked(alibi_slopes=alibi_slopes, **options)
    options["bias"] = trained(options.get("bias"))
    starts, ends, used = (varlen.integers(t, q.device) for t in (cu_seqlens_q, cu_seqlens_k, seqused_k))

    def run(q, k, v):
        launch = varlen.enqueued(q, k, v, starts, ends, max_seqlen_q, max_seqlen_k, wants_lse=True, seqused_k=used,
                                 softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                                 alibi_slopes=alibi_slopes, **options)
        return launch, launch.o, launch.lse

    o, lse = Attention.apply(q, k, v, options.get("sinks"), options["bias"], run, (0, 1, 2))
    return results(o, lse, return_lse, return_attn_probs)
