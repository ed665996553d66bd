"""The functions on caches, and the merge, as operators of torch, which torch.compile, modes and transforms see.

A function's signature is the operator's schema: `_SCHEMAS` has its annotations.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import _fa3, _torch, checks, functions, mla
from ._types import Memory

# The schema of an argument by its annotation. An argument of two types is two arguments of the operator.
_SCHEMAS = {
    "Tensor": "Tensor {0}", "Array": "Tensor {0}", "Array | None": "Tensor? {0}", "bool": "bool {0}", "int": "SymInt {0}",
    "int | None": "SymInt? {0}", "float": "float {0}", "float | None": "float? {0}", "str | None": "str? {0}",
    "Window": "SymInt[] {0}", "Array | int | None": "Tensor? {0}, SymInt? {0}_number",
    "Array | float | None": "Tensor? {0}, float? {0}_number",
    "tuple[int, int, Array] | None": "SymInt[]? {0}, Tensor? {0}_rest"}


class _Operator:
    """A function as an operator of `count` results; tensors without elements stand for those that a call lacks, because
    torch.compile takes no operator that writes arguments and returns a list. `fake` returns results without numbers, and
    `pack` what the function returns, of a list of results. The operator writes the arguments `written`."""

    def __init__(self, function: Any, name: str, count: int, fake: Callable[..., list[Memory]],
                 pack: Callable[[list[Memory]], Any], written: tuple[str, ...] = ()) -> None:
        self.function, self.count, self.fake, self.pack = function.__wrapped__, count, fake, pack
        parameters = inspect.signature(self.function).parameters.values()
        self.kinds = {p.name: p.annotation for p in parameters if p.annotation in _SCHEMAS and p.name != "device"}
        self.names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
        self.known = {p.name for p in parameters if p.kind != p.VAR_KEYWORD}
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        schema = ", ".join(_SCHEMAS[kind].format(name) for name, kind in self.kinds.items())
        for letter, of in zip("abcd", written):
            mark = f"Tensor({letter}!)"
            schema = schema.replace(f"Tensor {of},", f"{mark} {of},").replace(f"Tensor? {of},", f"{mark}? {of},")
        _torch.define(name, f"({schema}, str? device) -> ({', '.join(['Tensor'] * count)})", self.on_gpu, self.on_cpu, self.without_numbers)
        self.operator, self.writes = getattr(_torch.OPERATORS, name), bool(written)
        if not written:
            # torch takes no autograd formula of an operator that writes arguments.
            _torch.refuse_gradients(name, function.__name__)

    def __call__(self, arguments: tuple[Any, ...], options: Mapping[str, Any], device: str | None) -> Any:
        """Calls the operator with a function's arguments."""
        values = {**self.defaults, **dict(zip(self.names, arguments)), **options}
        others = {name: of for name, of in values.items() if name not in self.known}
        if others:
            values["chunked"] = _fa3.chunk(self.function.__name__, others, values["causal"], values["chunked"])
        flat: list[Any] = []
        for name, kind in self.kinds.items():
            of = values[name]
            if name in checks.SCALARS and not isinstance(of, torch.Tensor) and kind != "Window":
                of = None if of is None and kind.endswith("None") else checks.scalar(name, of)
            if kind.startswith("tuple"):
                of = None if of is None else checks.prefixes(of)
                flat += (None, None) if of is None else (list(of[:2]), of[2])
            elif kind.count("|") == 2:
                flat += (of, None) if of is None or isinstance(of, torch.Tensor) else (None, of)
            else:
                flat.append(list(checks.window(of)) if kind == "Window" else of)
        _torch.refuse_tangents(self.function.__name__, *flat)
        if self.writes and _torch.all_tracked(*flat):
            raise _torch.without_formula(self.function.__name__)
        out = self.operator(*flat, device)
        return self.pack([of for of in out if tuple(of.shape) != (0,)] if self.count else [])

    def arguments(self, flat: tuple[Any, ...]) -> dict[str, Any]:
        """Returns the function's arguments of the operator's."""
        given, out = iter(flat), {}
        for name, kind in self.kinds.items():
            of = next(given)
            if kind.startswith("tuple"):
                rest = next(given)
                of = None if of is None else (*of, rest)
            elif kind.count("|") == 2:
                number = next(given)
                of = number if of is None else of
            out[name] = of
        return out

    def on_gpu(self, *flat: Any) -> Any:
        with torch.cuda.device(flat[0].device):
            return self.results(flat[0], self.function(**self.arguments(flat[:-1])))

    def on_cpu(self, *flat: Any) -> Any:
        of = self.arguments(flat[:-1])
        out = self.results(flat[0], _torch.simulator(flat, flat[-1]).run(self.function, (), of, flat[-1]))
        return out and _torch.laid_out(self.without_numbers(*flat), out)

    def without_numbers(self, *flat: Any) -> Any:
        return self.results(flat[0], tuple(self.fake(**self.arguments(flat[:-1]))))

    def results(self, like: Memory, out: Any) -> Any:
        """Returns the operator's results of what a function returns."""
        tensors = [of for of in (out if isinstance(out, tuple) else (out,)) if of is not None]
        return (*tensors, *(like.new_empty(0) for _ in range(self.count - len(tensors)))) if self.count else None


def _rows(q: Memory, count: int, of_heads: bool) -> list[Memory]:
    shapes = [(*q.shape[:-3], q.shape[-2], q.shape[-3])] * count + [q.shape[-2:-1]] * int(of_heads)
    return [q.new_empty(shape, dtype=torch.float32) for shape in shapes]


def _of_cache(q: Memory, v_cache: Memory, return_softmax_lse: bool, return_max_logits: bool, return_entropy: bool,
              return_max_logits_head: bool, **_others: Any) -> list[Memory]:
    count = int(return_softmax_lse) + int(return_max_logits) + int(return_entropy)
    return [q.new_empty((*q.shape[:-1], v_cache.shape[-1])), *_rows(q, count, return_max_logits_head)]


def _of_latents(q: Memory, head_dim_v: int, indices: Memory, return_max_logits: bool, return_entropy: bool,
                return_max_logits_head: bool, **_others: Any) -> list[Memory]:
    o = q.new_empty((*q.shape[:-1], head_dim_v))
    if indices is not None:
        return [o, q.new_empty(q.shape[:-1], dtype=torch.float32).transpose(1, 2)]
    return [o, *_rows(q, 1 + int(return_max_logits) + int(return_entropy), return_max_logits_head)]


def _of_lists(q: Memory, d_v: int, **_others: Any) -> list[Memory]:
    return [q.new_empty((*q.shape[:2], d_v)), q.new_empty(q.shape[:2], dtype=torch.float32)]


_single = lambda out: tuple(out) if len(out) > 1 else out[0]
_CACHE = functions.flash_attn_with_kvcache
_OPERATORS = {
    "flash_attn_with_kvcache": _Operator(_CACHE, "flash_attn_with_kvcache", 5, _of_cache, _single),
    "flash_mla_with_kvcache": _Operator(mla.flash_mla_with_kvcache, "flash_mla_with_kvcache", 5, _of_latents, tuple),
    "flash_mla_sparse_fwd": _Operator(mla.flash_mla_sparse_fwd, "flash_mla_sparse_fwd", 2, _of_lists,
                                      lambda out: (out[0], None, out[1])),
    "merge_attn_states": _Operator(functions.merge_attn_states, "merge_attn_states", 0, lambda **_: [], lambda _: None,
                                   ("output", "output_lse")),
}
# An append also writes the factors of an int8 cache.
_APPEND = _Operator(_CACHE, "append_and_attend", 5, _of_cache, _single, ("k_cache", "v_cache", "k_descale", "v_descale"))


def call(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any], device: str | None) -> Any:
    """Calls the operator of a function."""
    appends = name == "flash_attn_with_kvcache" and (options.get("k") is not None or arguments[3:4] not in ((), (None,)))
    return (_APPEND if appends else _OPERATORS[name])(arguments, options, device)
