"""`torch.ops.ferroflash`: attention and its gradients as operators, with fake kernels and autograd."""
from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad
import torch.utils._python_dispatch

from . import _attention, _devices, checks, planned
from ._library import Invalid, Unsupported
from ._types import Memory

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? alibi_slopes, "
    "Tensor? sinks, Tensor? bias, Tensor? prefix, Tensor? mask_bits, SymInt max_seqlen_q, SymInt max_seqlen_k, "
    "float? softmax_scale, bool causal, SymInt left, SymInt right, float softcap, SymInt? prefix_keys, SymInt? chunked, "
    "SymInt mask_keys, bool bhsd, str? config, str? device")
_TENSORS = [argument.split()[1] for argument in _ARGUMENTS.split(", ") if argument.startswith("Tensor")]
# Two packages in one process, of two commits, have one namespace each.
_NAME = __package__
_LIBRARY = torch.library.Library(_NAME, "DEF")
# torch.compile then passes tensors of the strides that an eager call has.
_TAGS = [getattr(torch.Tag, name) for name in ("needs_fixed_stride_order",) if hasattr(torch.Tag, name)]


def define(name: str, schema: str, on_gpu: Any, on_cpu: Any, fake: Any) -> None:
    """Defines an operator."""
    _LIBRARY.define(name + schema, tags=_TAGS)
    _LIBRARY.impl(name, on_gpu, "CUDA")
    _LIBRARY.impl(name, on_cpu, "CPU")
    torch.library.register_fake(f"{_NAME}::{name}", fake, lib=_LIBRARY)


def _forward(*arguments: Any) -> Any:
    from . import _again
    *inputs, device = arguments
    with torch.cuda.device(inputs[0].device):
        return _again.call(_attention.forward, inputs[0], tuple(inputs), {})


def simulator(arguments: Any, device: Any) -> Any:
    """Returns the simulator, which a call on CPU tensors must name."""
    if device is None:
        raise _devices.not_on_gpu(arguments[0].device)
    from . import _simulator
    return _simulator


def _forward_simulated(*arguments: Any) -> Any:
    *inputs, device = arguments
    out = simulator(inputs, device).run(_attention.forward, inputs, {}, device)
    return laid_out(_forward_fake(*arguments), out)


def _readable(tensor: Memory) -> Any:
    """Returns the tensor, or a contiguous copy if kernels cannot read it: rows of 16 bytes, contiguous columns."""
    aligned = tensor.stride(-1) == 1 and all(stride % 8 == 0 for stride in tensor.stride()[:-1])
    readable = aligned and tensor.data_ptr() % 16 == 0
    return tensor if readable else tensor.clone(memory_format=torch.contiguous_format)


def _backward(*arguments: Any) -> Any:
    from . import _again
    *inputs, _config, _device, wants_sinks, wants_bias = arguments
    q, inputs[0] = inputs[4], _readable(inputs[0])
    inputs[1] = None if inputs[1] is None else inputs[1].contiguous()
    options = (*inputs, wants_sinks, wants_bias)
    with torch.cuda.device(q.device):
        out = _again.call(_attention.backward, q, options, {})
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in out)


def _backward_simulated(*arguments: Any) -> Any:
    *inputs, _config, device, wants_sinks, wants_bias = arguments
    options = (*inputs, wants_sinks, wants_bias)
    out = simulator(inputs, device).run(_attention.backward, options, {}, device)
    return laid_out(_backward_fake(*arguments), out)


def laid_out(fake: Any, out: Any) -> Any:
    """Returns results of the simulator, which are contiguous, in the layout that a GPU's results have."""
    return tuple(like if of is None else like.copy_(of) for like, of in zip(fake, out))


def _like(q: Memory, v: Memory) -> Any:
    return torch.empty_like(q) if q.shape[-1] == v.shape[-1] else q.new_empty((*q.shape[:-1], v.shape[-1]))


def _forward_fake(q: Memory, k: Memory, v: Memory, cu_seqlens_q: Memory, *arguments: Any) -> Any:
    bhsd = arguments[-3]
    if cu_seqlens_q is not None:
        return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    heads, rows = (q.shape[1], q.shape[2]) if bhsd else (q.shape[2], q.shape[1])
    return _like(q, v), q.new_empty((q.shape[0], heads, rows), dtype=torch.float32)


def _backward_fake(d_o: Memory, d_lse: Memory, o: Memory, lse: Memory, q: Memory, k: Memory, v: Memory,
                   *arguments: Any) -> Any:
    sinks, bias, wants_sinks, wants_bias = arguments[4], arguments[5], arguments[-2], arguments[-1]
    wanted = lambda tensor, wants, make: make(tensor) if wants else q.new_empty(0)
    return (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), wanted(sinks, wants_sinks, torch.empty_like),
            wanted(bias, wants_bias, lambda b: b.new_empty((*b.shape[:-1], b.shape[-1] + b.shape[-1] % 2))[..., :b.shape[-1]]))


def _saves(ctx: Any, inputs: Any, output: Memory) -> None:
    tensors, ctx.numbers = inputs[:11], inputs[11:]
    # torch raises an error in the backward pass if one of these has changed since.
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _differentiates(ctx: Any, d_o: Memory, d_lse: Memory, backward: Any = None) -> Any:
    o, lse, *tensors = ctx.saved_tensors
    d_o = torch.zeros_like(o) if d_o is None else d_o
    d_lse = None if d_lse is None else d_lse.contiguous()
    wants = [ctx.needs_input_grad[index] for index in (7, 8)]
    run = backward or OPERATORS.attention_backward
    refuse_tangents("a gradient of attention", d_o, d_lse, o, lse, *tensors)
    *three, dsinks, dbias = run(d_o, d_lse, o, lse, *tensors, *ctx.numbers, *wants)
    return (*three, *[None] * 4, dsinks if wants[0] else None, dbias if wants[1] else None, *[None] * 15)


def without_formula(name: str) -> Unsupported:
    """Returns the error of a gradient that a function lacks."""
    return Unsupported(f"a gradient of {name}: FerroFlash has gradients of flash_attn_func, flash_attn_varlen_func and their "
                       "packed forms only; call one of these, or this function under torch.no_grad()")


class _WithoutGradients(torch.autograd.Function):  # type: ignore[misc]
    """Results of a function without gradients, on tensors that require some: the backward pass says so."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Any) -> Any:
        ctx.name = name
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        raise without_formula(ctx.name)


def without_gradients(name: str, tracked: list[Any], run: Any) -> Any:
    """Calls a function without gradients on tensors that require some, `tracked`."""
    if name == "merge_attn_states":
        # It writes its results, of which autograd knows nothing.
        raise without_formula(name)
    with torch.no_grad():
        out = run()
    results = out if isinstance(out, tuple) else (out,)
    tensors = [of for of in results if of is not None]
    with_errors = iter(_WithoutGradients.apply(name, len(tensors), *tensors, *tracked))
    results = tuple(None if of is None else next(with_errors) for of in results)
    return results if isinstance(out, tuple) else results[0]


def refuse_gradients(operator: str, function: str) -> None:
    """Gives an operator an autograd formula that names the function without gradients."""

    def refuses(ctx: Any, *gradients: Any) -> None:
        raise without_formula(function)

    torch.library.register_autograd(f"{_NAME}::{operator}", refuses, lib=_LIBRARY)


def _refuses(ctx: Any, *gradients: Any) -> None:
    raise Unsupported("a second derivative of attention: FerroFlash computes first derivatives only; leave out "
                      "create_graph")


define("attention", f"({_ARGUMENTS}) -> (Tensor, Tensor)", _forward, _forward_simulated, _forward_fake)
define("attention_backward", f"(Tensor d_o, Tensor? d_lse, Tensor o, Tensor lse, {_ARGUMENTS}, bool wants_sinks, bool "
       "wants_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", _backward, _backward_simulated, _backward_fake)
torch.library.register_autograd(f"{_NAME}::attention", _differentiates, setup_context=_saves, lib=_LIBRARY)
torch.library.register_autograd(f"{_NAME}::attention_backward", _refuses, lib=_LIBRARY)


OPERATORS = getattr(torch.ops, _NAME)
_FORWARD = torch.autograd.forward_ad


def has_levels() -> bool:
    """Returns whether forward-mode AD is active, also that of torch.func.jvp."""
    return getattr(_FORWARD, "_current_level", -1) >= 0


# Modes, transforms of torch.func and forward-mode derivatives see operators only.
_SEES_OPERATORS = [test for test in (getattr(torch.utils._python_dispatch, "is_in_torch_dispatch_mode", None),
                                     getattr(torch._C, "_are_functorch_transforms_active", None),
                                     torch.compiler.is_compiling, has_levels) if test]


class _Eager(torch.autograd.Function):  # type: ignore[misc]
    """The operator's eager calls on a GPU. The dispatcher's Python for an operator takes longer than a short launch."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        # torch takes longer for a `setup_context` of its own.
        out = _forward(*arguments)
        _saves(ctx, arguments, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_o: Memory, d_lse: Memory) -> Any:
        # Gradients are enabled here only for a second derivative, which the operator refuses.
        direct = not torch.is_grad_enabled() and not sees_operators()
        return _differentiates(ctx, d_o, d_lse, _backward if direct else None)


def wanted(device: Any, *tensors: Any) -> bool:
    """Returns whether a call must go through the operator: the simulator, gradients, or what sees operators only."""
    return device is not None or tracked(*tensors) or sees_operators()


def sees_operators() -> bool:
    """Returns whether torch.compile, a mode or a transform is active, which sees operators only."""
    for test in _SEES_OPERATORS:
        if test():
            return True
    return False


def tracked(*tensors: Any) -> bool:
    """Returns whether a gradient of one of the tensors is wanted."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def all_tracked(*arguments: Any) -> list[Any]:
    """Returns the tensors of which a gradient is wanted."""
    if not torch.is_grad_enabled():
        return []
    return [of for of in arguments if isinstance(of, torch.Tensor) and of.requires_grad]


def refuse_tracked(**options: Any) -> None:
    """Raises an error if a gradient of an option is wanted."""
    for name, option in options.items():
        if isinstance(option, torch.Tensor) and tracked(option):
            raise Unsupported(f"{name} requires a gradient: FerroFlash computes those of q, k, v, sinks and bias; pass "
                              f"{name}.detach()")


def refuse_tangents(function: str, *arguments: Any) -> None:
    """Raises an error if a forward-mode derivative of a tensor is wanted. torch calls an operator without the
    tangent, and takes a derivative of 0."""
    if torch.compiler.is_compiling() or not has_levels():
        return
    for of in arguments:
        if isinstance(of, torch.Tensor) and _FORWARD.unpack_dual(of).tangent is not None:
            raise Unsupported(f"a forward-mode derivative of {function}: FerroFlash has gradients only; call it outside of "
                              "torch.func.jvp, jacfwd and dual_level, and call backward()")


def attend(*arguments: Any) -> Any:
    """Calls the operator. Of an expanded bias that requires a gradient, it gets a copy: autograd sums the gradient of
    the copy, and the kernels would sum it, too."""
    inputs = list(arguments)
    refuse_tangents("attention", *inputs)
    bias = inputs[8]
    if bias is not None and bias.requires_grad and any(
            n > 1 and stride == 0 for n, stride in zip(bias.shape, bias.stride())):
        inputs[8] = bias.contiguous()
    refuse_tracked(alibi_slopes=inputs[6])
    q, device, is_seen = inputs[0], inputs[-1], sees_operators()
    if inputs[3] is not None and device is None and not is_seen:
        checks.of_sequences(q, inputs[1], inputs[3], inputs[4], inputs[11], inputs[12], inputs[5])
    # The backward pass reads these, too.
    for at, name in ((3, "cu_seqlens_q"), (4, "cu_seqlens_k"), (5, "seqused_k")):
        of = inputs[at]
        if of is not None:
            _devices.require_integers(name, of)
            if not is_seen:
                _devices.require_dense(name, of)
            if device is not None:
                _devices.on_cpu(name, of)
            inputs[at] = _devices.narrowed(of).to(q.device, torch.int32).contiguous()
    plain = device is None and type(q) in (torch.Tensor, torch.nn.Parameter) and q.is_cuda
    if plain and not is_seen:
        out = _Eager.apply(*inputs)
        planned.took(_Eager.apply, inputs, out)
        return out
    # The dispatcher runs the fake kernel if one of the tensors is on the device "meta".
    for name, of in zip(_TENSORS, inputs):
        if of is not None and not is_seen:
            _devices.require_dense(name, of)
        if of is not None and device is not None:
            _devices.on_cpu(name, of)
        elif of is not None and of.device != q.device:
            raise Invalid(f"{name} is on {of.device}; it must be on {q.device}, as q; move {name}")
    if torch.compiler.is_compiling():
        return OPERATORS.attention(*inputs)
    try:
        return OPERATORS.attention(*inputs)
    except RuntimeError as error:
        # torch gives an operator's formula to backward() only.
        if "functorch" not in str(error):
            raise
        raise Unsupported("torch.func.grad or torch.func.vjp of attention: FerroFlash has gradients of backward() only; call "
                          "backward(), or torch.autograd.grad") from error
