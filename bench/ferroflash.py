"""FerroFlash on torch tensors, through its C ABI and ctypes. This module is for comparisons; it is not a product.

    from ferroflash import flash_attn_func
    o = flash_attn_func(q, k, v, causal=True)          # (batch, seqlen, heads, head_dim), f16 or bf16, on a GPU

The library is the file that FERROFLASH_LIBRARY names. Otherwise it is libferroflash.so or libferroflash_c.so beside this
file, in ../gpu-pack or in ../target/release (`cargo build --release --package ferroflash-cabi`). The module keeps one
plan and one workspace per problem, stream and thread. CUDA graphs captured on one stream share that stream's workspace, so
replay them one after another.
"""
import ctypes
import math
import importlib.util
import os
import threading
import weakref

import torch


def _bindings():
    """Loads `_bindings.py`, which is beside this file in gpu-pack. Two commits in one process have one each."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = os.path.join(here, "_bindings.py"), os.path.join(here, "..", "python", "ferroflash", "_bindings.py")
    spec = importlib.util.spec_from_file_location("_bindings", next(filter(os.path.exists, paths)))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


c = _bindings()
UNSUPPORTED = c.UNSUPPORTED
FULL, CAUSAL, WINDOW, PREFIX, CHUNKED, BITS = (
    c.MASK_FULL, c.MASK_CAUSAL, c.MASK_WINDOW, c.MASK_PREFIX, c.MASK_CHUNKED, c.MASK_BITS)
DTYPES = {torch.float16: c.F16, torch.bfloat16: c.BF16}
BIAS_DTYPES = {**DTYPES, torch.float32: c.F32}


class Error(RuntimeError):
    """Returns the library's error message."""


class Unsupported(Error):
    """A valid request that FerroFlash does not support."""


def _find():
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [here, os.path.join(here, "..", "gpu-pack"), os.path.join(here, "..", "target", "release")]
    named = os.environ.get("FERROFLASH_LIBRARY")
    names = ("libferroflash.so", "libferroflash_c.so")
    paths = [named] if named else [os.path.join(folder, name) for folder in folders for name in names]
    for path in paths:
        if os.path.exists(path):
            return path
    raise Error("no FerroFlash library at " + ", ".join(paths))


def _open():
    lib = ctypes.CDLL(_find())
    for name, (result, arguments) in c.FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    structs = {"attention": c.Attention, "plan_info": c.PlanInfo, "backward": c.Backward, "append": c.Append, "merge": c.Merge}
    known = (c.ABI_VERSION, *(ctypes.sizeof(struct) for struct in structs.values()))
    found = (lib.ferroflash_abi_version(), *(getattr(lib, f"ferroflash_{name}_size")() for name in structs))
    if known != found:
        raise Error(f"the library's version and struct sizes are {found}, this file knows {known}")
    return lib


LIB = _open()


def _check(status):
    if status != 0:
        raise (Unsupported if status == UNSUPPORTED else Error)(LIB.ferroflash_last_error().decode())


_contexts, _contexts_lock = {}, threading.Lock()


def _context(index):
    """Returns the library's context on a device. All threads share it."""
    with _contexts_lock:
        if index not in _contexts:
            context = ctypes.c_void_p()
            with torch.cuda.device(index):
                torch.cuda.current_stream().synchronize()
                _check(LIB.ferroflash_context_create(ctypes.byref(context)))
            _contexts[index] = context
        return _contexts[index]


_counters, _counters_lock = {}, threading.Lock()


def _zeros(device, stream, count):
    """Returns the counters of a stream. Every launch leaves zeros in them. If a launch needs more
    counters, older launches keep the smaller buffer.

    A graph under capture gets other counters from its memory pool, and sets them to zero in each replay.
    """
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(count, dtype=torch.uint8, device=device)
    with _counters_lock:
        kept = _counters.setdefault((device.index, stream), [])
        if not kept or kept[-1].numel() < count:
            kept.append(torch.zeros(count, dtype=torch.uint8, device=device))
        return kept[-1]


def padded(strides, count):
    """Returns strides for the structs, with zeros before them."""
    return (ctypes.c_int64 * count)(*([0] * (count - len(strides)) + list(strides)))


class Planned:
    """One request on the stream that is current now: its arguments, its plan, its scratch memory. It belongs to one thread."""

    def __init__(self, q, mask, window, scale, softcap, config):
        self.context, self.stream = _context(q.device.index), torch._C._cuda_getCurrentRawStream(q.device.index)
        args = self.args = c.Attention(size=ctypes.sizeof(c.Attention))
        self.where, self.device = ctypes.addressof(args), q.device
        args.dtype, args.mask, (args.window_left, args.window_right) = DTYPES[q.dtype], mask, window
        args.scale, args.softcap = scaled(scale), softcap
        args.config = config.encode() if config else None

    def point(self, **tensors):
        """Sets the addresses of tensors."""
        for name, tensor in tensors.items():
            setattr(self.args, name, None if tensor is None else tensor.data_ptr())

    def strides(self, lse, slopes, **tensors):
        """Sets the strides of tensors, aligned at the last dimension, and the strides of ALiBi slopes, (heads) or (batch, heads)."""
        for name, strides in tensors.items():
            setattr(self.args, f"{name}_strides", padded(strides, 4))
        if lse is not None:
            self.args.lse_strides = padded(lse.stride()[:-1], 2)
        if slopes is not None:
            self.args.alibi_strides = padded(slopes.stride(), 2)

    def extras(self, sinks=None, bias=None, prefix=None, chunked=None, mask_bits=None, mask_keys=0):
        """Sets sinks, a bias and masks. The sizes must be set before.

        `sinks` are float32 (heads), `bias` is (batch or 1, heads or 1, queries or 1, keys) in float16, bfloat16 or float32.
        `prefix` is a number of keys that every query sees, or int32 (batch). `chunked` is the number of positions per chunk.
        `mask_bits` is uint8 (batch or 1, heads or 1, queries, bytes): bits of the last `mask_keys` keys, or of all.
        """
        args, (lengths, number) = self.args, (prefix, 0) if isinstance(prefix, torch.Tensor) else (None, prefix)
        shared = lambda t: (ctypes.c_int64 * 3)(*(0 if n == 1 else stride for n, stride in zip(t.shape[:3], t.stride())))
        self.point(bias=bias, prefix_lengths=lengths, mask_bits=mask_bits)
        if sinks is not None:
            self.point(sinks=sinks)
        if bias is not None:
            wanted = (args.batch, args.heads_q, args.seqlen_q)
            if bias.dim() != 4 or any(n not in (1, want) for n, want in zip(bias.shape, wanted)) or bias.stride(3) != 1:
                raise Error(f"bias {tuple(bias.shape)}: it must be {wanted} or 1 each, and keys, which are contiguous")
            args.bias_dtype, args.bias_strides = BIAS_DTYPES[bias.dtype], shared(bias)
        if prefix is not None:
            args.mask, args.mask_length = PREFIX, number
        if chunked is not None:
            args.mask, args.mask_length = CHUNKED, chunked
        if mask_bits is not None:
            args.mask, args.mask_bits_strides, args.mask_bits_keys = BITS, shared(mask_bits), mask_keys
            if mask_bits.shape[2] == 1:
                # A stride of 0 would make queries share a row.
                args.mask_bits_strides[2] = mask_bits.shape[3]

    def plan_it(self, share=None):
        """Allocates scratch memory, plans, and loads the kernels. `share` is another launch on the same stream; this launch
        uses the other launch's workspace if that is large enough."""
        args, room, counted = self.args, ctypes.c_uint64(), ctypes.c_uint64()
        _check(LIB.ferroflash_scratch_size(self.context, self.where, ctypes.byref(room), ctypes.byref(counted)))
        self.workspace = share.workspace if share else None
        if self.workspace is None or self.workspace.numel() < room.value:
            self.workspace = torch.empty(room.value, dtype=torch.uint8, device=self.device)
        if room.value:
            args.workspace, args.workspace_bytes = self.workspace.data_ptr(), room.value
        if counted.value:
            self.counters = _zeros(self.device, self.stream, counted.value)
            args.counters, args.counters_bytes = self.counters.data_ptr(), counted.value
        plan = self.plan = ctypes.c_void_p()
        _check(LIB.ferroflash_plan_create(self.context, self.where, ctypes.byref(plan)))
        weakref.finalize(self, LIB.ferroflash_plan_destroy, plan)
        # The kernel must be compiled before the launch, because a graph may capture the launch.
        _check(LIB.ferroflash_load(self.context, plan))

    def enqueue(self):
        _check(LIB.ferroflash_launch(self.context, self.plan, self.where, self.stream))

    def describe(self):
        """Returns the planner's choice: entry, reason, grid, threads, shared memory."""
        info = c.PlanInfo(size=ctypes.sizeof(c.PlanInfo))
        _check(LIB.ferroflash_plan_describe(self.plan, ctypes.byref(info)))
        return {"entry": info.entry.decode(), "reason": info.reason.decode(), "grid": list(info.grid),
                "threads": info.block[0], "smem_bytes": info.smem_bytes}


class Launch(Planned):
    """Attention on tensors. Its thread may set other tensors of the same layout."""

    def __init__(self, q, k, v, o, lse, mask, window, scale, softcap, config, bhsd, slopes=None, **extras):
        super().__init__(q, mask, window, scale, softcap, config)
        args, (row, head) = self.args, (2, 1) if bhsd else (1, 2)
        order = (0, row, head, 3)
        args.batch, args.seqlen_q, args.heads_q, args.head_dim = (q.shape[i] for i in order)
        args.seqlen_k, args.heads_k, args.head_dim_v = k.shape[row], k.shape[head], v.shape[3]
        ordered = lambda t: [t.stride(i) for i in order]
        self.strides(lse, slopes, q=ordered(q), k=ordered(k), v=ordered(v), o=ordered(o))
        self.point(q=q, k=k, v=v, o=o, lse=lse, alibi_slopes=slopes)
        self.extras(**extras)
        self.plan_it()


def masked(causal, window_size):
    """Returns the mask and the window for FlashAttention's arguments. A negative side means no bound."""
    left, right = (max(int(side), -1) for side in window_size)
    right = 0 if causal else right
    return CAUSAL if causal and left < 0 else WINDOW if left >= 0 or right >= 0 else FULL, (left, right)


def scaled(softmax_scale):
    """Returns a scale for the structs. In a struct, 0 means the library's default, so a caller's 0 becomes another number."""
    if softmax_scale is not None and ctypes.c_float(softmax_scale).value == 0.0:
        raise Error(f"softmax_scale {softmax_scale}: it must be above 0 as a float32; None is 1 / sqrt(head_dim)")
    return 0.0 if softmax_scale is None else softmax_scale


def sloped(alibi_slopes, q, batch, heads):
    """Converts FlashAttention's ALiBi slopes to (heads) or (batch, heads) in float32 on q's device; None stays None."""
    if alibi_slopes is not None and (alibi_slopes.dtype != torch.float32 or alibi_slopes.device != q.device
                                     or tuple(alibi_slopes.shape) not in ((heads,), (batch, heads))):
        raise Error(f"alibi_slopes {tuple(alibi_slopes.shape)}: it must be ({heads},) or ({batch}, {heads}) in float32 beside q")
    return alibi_slopes


class _Local(threading.local):
    """The launches that a thread has prepared."""

    def __init__(self):
        self.launches = {}


_local = _Local()


def prepare(q, k, v, *, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
            return_lse=False, config=None, bhsd=False, **extras):
    """Allocates outputs and finds or makes the launch on the current stream: (launch, o, lse)."""
    if not (q.is_cuda and k.device == q.device and v.device == q.device):
        raise Error(f"q, k and v must be on one GPU; they are on {q.device}, {k.device}, {v.device}")
    # Each stream has its own arguments and workspace, because launches of two streams may run concurrently.
    stream = torch._C._cuda_getCurrentRawStream(q.device.index)
    # Of q's memory order, with v's columns.
    o = torch.empty_like(q) if v.shape[-1] == q.shape[-1] else q.new_empty((*q.shape[:-1], v.shape[-1]))
    heads, rows = (q.shape[1], q.shape[2]) if bhsd else (q.shape[2], q.shape[1])
    lse = torch.empty((q.shape[0], heads, rows), dtype=torch.float32, device=q.device) if return_lse else None
    mask, (left, right) = masked(causal, window_size)
    slopes = sloped(alibi_slopes, q, q.shape[0], heads)
    key = (q.device.index, stream, q.dtype, k.dtype, v.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
           o.stride(), mask, left, right, softmax_scale, softcap, return_lse, config, bhsd,
           None if slopes is None else (slopes.shape, slopes.stride()), *_layouts(extras))
    launch = _local.launches.get(key)
    if launch is None:
        if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
            raise Error("q, k and v must be float16 or bfloat16, all three of one dtype")
        if v.shape[:-1] != k.shape[:-1] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
            raise Error(f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit together")
        launch = Launch(q, k, v, o, lse, mask, (left, right), softmax_scale, softcap, config, bhsd, slopes, **extras)
        _local.launches[key] = launch
    launch.point(q=q, k=k, v=v, o=o, lse=lse, alibi_slopes=slopes)
    tensors = {name: of for name, of in extras.items() if isinstance(of, torch.Tensor)}
    launch.point(**{"prefix_lengths" if name == "prefix" else name: of for name, of in tensors.items()})
    return launch, o, lse


def _layouts(extras):
    """Returns extras without their addresses. Launches of tensors with the same layout then share one prepared launch."""
    of = lambda x: (x.dtype, x.shape, x.stride()) if isinstance(x, torch.Tensor) else x
    return sorted((name, str(of(x))) for name, x in extras.items())


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, *, return_lse=False, config=None,
                    bhsd=False, **extras):
    """Computes attention of (batch, seqlen, heads, head_dim) tensors on the current stream. Masks are aligned bottom-right.

    FlashAttention-2's arguments in its order. `alibi_slopes` are (heads) or (batch, heads) in float32: scores fall by slope *
    |i + seqlen_k - seqlen_q - j|, in the log-sum-exp too. `deterministic` changes nothing: results are always the same in every
    bit. Dropout is refused. No gradients: training.py has this function with gradients.

    `v` may have another head_dim than `q` and `k`; `o` has it too.

    Returns o, with return_lse (o, lse), with return_attn_probs (o, lse, None) as FlashAttention-2 does without dropout; lse is
    (batch, heads, seqlen) in float32. `config` names an entry; `bhsd` takes (batch, heads, seqlen, head_dim). `extras` are
    the arguments of Planned.extras: sinks, bias, prefix, chunked, mask_bits, mask_keys.
    """
    if dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p}: FerroFlash has no dropout; it must be 0.0")
    launch, o, lse = prepare(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
                             alibi_slopes=alibi_slopes, return_lse=return_lse or return_attn_probs, config=config, bhsd=bhsd,
                             **extras)
    launch.enqueue()
    if return_attn_probs:
        return o, like_flash_attn(lse), None
    return (o, lse) if return_lse else o


def like_flash_attn(lse):
    """Converts the LSE of rows without a key to +inf, as FlashAttention-2 returns it. FerroFlash returns -inf, the logarithm of 0."""
    return lse.masked_fill_(lse == -math.inf, math.inf)


def flash_attn_func_bhsd(q, k, v, **options):
    """Computes flash_attn_func for tensors (batch, heads, seqlen, head_dim), PyTorch's order."""
    return flash_attn_func(q, k, v, bhsd=True, **options)


def entries():
    """Returns the names of all compiled kernels."""
    return [LIB.ferroflash_entry_name(i).decode() for i in range(LIB.ferroflash_entry_count())]
