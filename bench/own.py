"""Variants of a caller (bench/own) on torch tensors, through ctypes: their functions are Rust, compiled into FerroFlash's kernels.

The library is libown_variants.so beside this file (`cargo xtask gpu-pack --own`), or in own/target/release (`cargo build --release` in
bench/own).
"""
import ctypes
import os

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "libown_variants.so"
TILE = 128  # queries of a block in lists, and its keys, unless a kernel has fewer


class Problem(ctypes.Structure):
    """`Problem` of bench/own/src/lib.rs"""

    _fields_ = ([(name, ctypes.c_uint64) for name in ("q", "k", "v", "o")] + [("tables", ctypes.c_uint64 * 2 * 2)]
                + [(name, ctypes.c_uint64) for name in ("is_bf16", "batch", "heads", "seqlen", "head_dim")]
                + [("softcap", ctypes.c_double), ("image", ctypes.c_uint64 * 2), ("tile", ctypes.c_uint64 * 2)])


def path():
    """Returns the library's path, or None if the library is not built."""
    paths = (os.path.join(HERE, NAME), os.path.join(HERE, "own", "target", "release", NAME))
    return next((path for path in paths if os.path.exists(path)), None)


def library():
    loaded = ctypes.CDLL(path())
    loaded.own_prepare.restype = loaded.own_entry.restype = ctypes.c_void_p
    return loaded


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Own:
    """A variant: its name in bench/own, tables and numbers. Calls take and return (batch, heads, seqlen, head_dim)."""

    library = None

    def __init__(self, name, tables=(), softcap=0.0, image=(1, 0), lists=None):
        self.name, self.softcap, self.image, self.tables = name, softcap, image, list(tables)
        self.lists, self.prepared = lists, {}
        Own.library = Own.library or library()

    def tile(self, dim):
        return TILE, 80 if self.lists and dim == 128 else TILE

    def problem(self, q, k, v, o):
        rows = [t.transpose(1, 2) for t in (q, k, v, o)]
        assert all(t.is_contiguous() and t.shape == rows[0].shape for t in rows), "tensors (batch, seqlen, heads, head_dim) of one shape"
        batch, seqlen, heads, dim = rows[0].shape
        tables = [(t.data_ptr(), t.numel()) for t in self.tables] + [(0, 0)] * (2 - len(self.tables))
        tables = (ctypes.c_uint64 * 2 * 2)(*((ctypes.c_uint64 * 2)(*table) for table in tables))
        return Problem(*(t.data_ptr() for t in rows), tables, q.dtype == torch.bfloat16, batch, heads, seqlen, dim, self.softcap,
                       (ctypes.c_uint64 * 2)(*self.image), (ctypes.c_uint64 * 2)(*self.tile(dim)))

    def call(self, q, k, v):
        """Returns a call that launches the variant on these tensors."""
        o = torch.empty_like(q)
        problem = self.problem(q, k, v, o)
        if self.lists:
            self.make(problem, q)
            problem = self.problem(q, k, v, o)
        prepared = self.library.own_prepare(self.name.encode(), ctypes.byref(problem))
        if not prepared:
            raise RuntimeError(f"{self.name} has no plan")
        length = ctypes.c_size_t()
        entry = ctypes.string_at(self.library.own_entry(ctypes.c_void_p(prepared), ctypes.byref(length)), length.value).decode()

        def launch():
            if self.library.own_launch(ctypes.c_void_p(prepared), stream()):
                raise RuntimeError(f"{self.name} was not launched")
            return o
        launch.entry, launch.keeps = entry, (q, k, v, o, self.tables)
        return launch

    def make(self, problem, q):
        """Makes the block mask on the device."""
        rows, columns = (-(-q.shape[2] // size) for size in self.tile(q.shape[3]))
        self.tables = [torch.zeros(n, dtype=torch.int32, device=q.device) for n in (4 * rows, 2 * rows * columns)]
        problem.tables = (ctypes.c_uint64 * 2 * 2)(*((ctypes.c_uint64 * 2)(t.data_ptr(), t.numel()) for t in self.tables))
        if self.library.own_natten_lists(ctypes.byref(problem), stream()):
            raise RuntimeError("the kernel of the lists was not launched")


def block_lists(sees):
    """Returns the tables of a block mask of full blocks: `sees` is a bool tensor of tiles and key blocks."""
    rows = [row.nonzero().flatten().int() for row in sees.cpu()]
    starts = torch.tensor([0] + [len(row) for row in rows]).cumsum(0).int()
    tiles = torch.tensor([[int(starts[i]), len(row), 0, 0] for i, row in enumerate(rows)], dtype=torch.int32)
    room = torch.zeros(2 * sees.numel(), dtype=torch.int32)
    room[:starts[-1]] = torch.cat(rows)
    return [tiles.flatten().to(sees.device), room.to(sees.device)]
