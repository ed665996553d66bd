"""FerroFlash on torch tensors, through its C ABI and ctypes. For comparisons; not a product.

    from ferroflash import flash_attn_func
    o = flash_attn_func(q, k, v, causal=True)          # (batch, seqlen, heads, head_dim), f16 or bf16, on a GPU

The library is FERROFLASH_LIBRARY, else libferroflash.so or libferroflash_c.so beside this file, in ../gpu-pack or in
../target/release (`cargo build --release --package ferroflash-cabi`). Plans are kept, one for each problem.
"""
import ctypes
import os

import torch

ABI_VERSION = 1
FULL, CAUSAL, CAUSAL_TOP_LEFT, WINDOW = range(4)
DTYPES = {torch.float16: 0, torch.bfloat16: 1}


class Forward(ctypes.Structure):
    """ferroflash_forward_t"""

    _fields_ = (
        [("size", ctypes.c_uint64)]
        + [(name, ctypes.c_void_p) for name in ("q", "k", "v", "o", "lse")]
        + [(name, ctypes.c_int64) for name in ("batch", "seqlen_q", "seqlen_k", "heads_q", "heads_k", "head_dim")]
        + [(name, ctypes.c_int64 * 4) for name in ("q_strides", "k_strides", "v_strides", "o_strides")]
        + [("lse_strides", ctypes.c_int64 * 2)]
        + [(name, ctypes.c_int32) for name in ("dtype", "mask", "window_left", "window_right")]
        + [("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("config", ctypes.c_char_p)]
        + [("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_uint64)]
    )


class PlanInfo(ctypes.Structure):
    """ferroflash_plan_info_t"""

    _fields_ = [
        ("size", ctypes.c_uint64),
        ("entry", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem_bytes", ctypes.c_uint64),
    ]


class Error(RuntimeError):
    """What the library said."""


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
    for name in ("ferroflash_version", "ferroflash_last_error", "ferroflash_entry_name"):
        getattr(lib, name).restype = ctypes.c_char_p
    for name in ("ferroflash_forward_size", "ferroflash_plan_info_size", "ferroflash_entry_count"):
        getattr(lib, name).restype = ctypes.c_size_t
    pointer = ctypes.c_void_p
    lib.ferroflash_workspace_size.argtypes = [pointer, pointer, pointer]
    lib.ferroflash_entry_name.argtypes = [ctypes.c_size_t]
    lib.ferroflash_context_create.argtypes = [pointer]
    lib.ferroflash_plan_create.argtypes = [pointer, pointer, pointer]
    lib.ferroflash_plan_describe.argtypes = [pointer, pointer]
    lib.ferroflash_load.argtypes = [pointer, pointer]
    lib.ferroflash_launch.argtypes = [pointer, pointer, pointer, pointer]
    lib.ferroflash_forward.argtypes = [pointer, pointer, pointer]
    ours = (ABI_VERSION, ctypes.sizeof(Forward), ctypes.sizeof(PlanInfo))
    theirs = (lib.ferroflash_abi_version(), lib.ferroflash_forward_size(), lib.ferroflash_plan_info_size())
    if ours != theirs:
        raise Error(f"the library's version and struct sizes are {theirs}, this file knows {ours}")
    return lib


LIB = _open()


def _check(status):
    if status != 0:
        raise Error(LIB.ferroflash_last_error().decode())


class Launch:
    """One problem on one device: its plan, and its arguments but for the addresses."""

    contexts = {}

    def __init__(self, q, k, v, o, lse, mask, window, scale, softcap, config, bhsd):
        index = q.device.index
        if index not in Launch.contexts:
            context = ctypes.c_void_p()
            with torch.cuda.device(index):
                torch.cuda.current_stream().synchronize()
                _check(LIB.ferroflash_context_create(ctypes.byref(context)))
            Launch.contexts[index] = context
        self.context = Launch.contexts[index]

        args = self.args = Forward(size=ctypes.sizeof(Forward))
        row, head = (2, 1) if bhsd else (1, 2)
        order = (0, row, head, 3)
        strides = lambda t: (ctypes.c_int64 * 4)(*(t.stride(i) for i in order))
        args.batch, args.seqlen_q, args.heads_q, args.head_dim = (q.shape[i] for i in order)
        args.seqlen_k, args.heads_k = k.shape[row], k.shape[head]
        args.q_strides, args.k_strides, args.v_strides, args.o_strides = (strides(t) for t in (q, k, v, o))
        if lse is not None:
            args.lse_strides = (ctypes.c_int64 * 2)(lse.stride(0), lse.stride(1))
        args.dtype, args.mask = DTYPES[q.dtype], mask
        args.window_left, args.window_right = window
        args.scale, args.softcap = scale or 0.0, softcap
        args.config = config.encode() if config else None
        self.point(q, k, v, o, lse)
        self.where = ctypes.addressof(args)
        needed = ctypes.c_uint64()
        _check(LIB.ferroflash_workspace_size(self.context, self.where, ctypes.byref(needed)))
        if needed.value:
            self.workspace = torch.empty(needed.value, dtype=torch.uint8, device=q.device)
            args.workspace, args.workspace_bytes = self.workspace.data_ptr(), needed.value
        plan = ctypes.c_void_p()
        _check(LIB.ferroflash_plan_create(self.context, self.where, ctypes.byref(plan)))
        self.plan = plan
        # Compiled now: a launch may be captured in a graph.
        _check(LIB.ferroflash_load(self.context, plan))

    def point(self, q, k, v, o, lse):
        args = self.args
        args.q, args.k, args.v, args.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
        args.lse = None if lse is None else lse.data_ptr()

    def enqueue(self, stream):
        _check(LIB.ferroflash_launch(self.context, self.plan, self.where, stream))

    def describe(self):
        """What was chosen: entry, reason, grid, threads, shared memory."""
        info = PlanInfo(size=ctypes.sizeof(PlanInfo))
        _check(LIB.ferroflash_plan_describe(self.plan, ctypes.byref(info)))
        return {"entry": info.entry.decode(), "reason": info.reason.decode(), "grid": list(info.grid),
                "threads": info.block[0], "smem_bytes": info.smem_bytes}


_launches = {}


def prepare(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, return_lse=False,
            config=None, bhsd=False):
    """Allocates outputs and finds or makes the launch: (launch, o, lse)."""
    o = torch.empty_like(q)
    heads, rows = (q.shape[1], q.shape[2]) if bhsd else (q.shape[2], q.shape[1])
    lse = torch.empty((q.shape[0], heads, rows), dtype=torch.float32, device=q.device) if return_lse else None
    left, right = window_size
    mask = FULL
    if causal and left < 0:
        mask = CAUSAL
    elif causal or left >= 0 or right >= 0:
        mask, right = WINDOW, (0 if causal else right)
    key = (q.device.index, q.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), o.stride(), mask,
           left, right, softmax_scale, softcap, return_lse, config, bhsd)
    launch = _launches.get(key)
    if launch is None:
        if not (q.is_cuda and k.device == q.device and v.device == q.device):
            raise Error("q, k and v must be on one GPU")
        if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
            raise Error("q, k and v must be float16 or bfloat16, all three the same")
        if v.shape != k.shape or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
            raise Error(f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not belong together")
        window = (max(left, -1), max(right, -1))
        launch = _launches[key] = Launch(q, k, v, o, lse, mask, window, softmax_scale, softcap, config, bhsd)
    launch.point(q, k, v, o, lse)
    return launch, o, lse


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, return_lse=False,
                    config=None, bhsd=False):
    """Attention of (batch, seqlen, heads, head_dim) tensors on the current stream; masks are aligned bottom-right.

    Returns o, with return_lse (o, lse), lse being (batch, heads, seqlen) in float32. `config` names an entry. No gradients.
    """
    launch, o, lse = prepare(q, k, v, softmax_scale, causal, window_size, softcap, return_lse, config, bhsd)
    launch.enqueue(torch._C._cuda_getCurrentRawStream(q.device.index))
    return (o, lse) if return_lse else o


def flash_attn_func_bhsd(q, k, v, **options):
    """The same for (batch, heads, seqlen, head_dim), PyTorch's order."""
    return flash_attn_func(q, k, v, bhsd=True, **options)


def entries():
    """Names of all compiled kernels."""
    return [LIB.ferroflash_entry_name(i).decode() for i in range(LIB.ferroflash_entry_count())]
