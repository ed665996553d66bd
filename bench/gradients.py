"""What the scripts that time gradients share: calls that compute them, their check, the rows, and the options of the command line."""
import functools

import torch

import compare
import report

# Peers that PyTorch's flag makes deterministic. FlashAttention-4 has an argument for that, so it is a peer with another forward.
FLAGGED = {"fa2_deterministic": "fa2", "cudnn_deterministic": "cudnn"}
PEERS = ["fa2", "cudnn", "fa4", *FLAGGED, "fa4_deterministic"]
# Peers of the summary: the fastest of several.
FASTEST = {"fastest": [*PEERS, "flex", "sdpa_efficient", "sdpa_cudnn"], "fastest_deterministic": [*FLAGGED, "fa4_deterministic"],
           "fastest_deterministic_fa": ["fa2_deterministic", "fa4_deterministic"]}


def calls(forwards, inputs, d_o, args):
    """Returns {name: call} of {name: forward} for FerroFlash and `args.peers`. Each call returns the gradients of the inputs. With
    `args.whole`, it computes the forward, too. Libraries whose forward fails are left out."""
    wanted = {name: FLAGGED.get(name, name) for name in ("ferroflash", *args.peers)}
    forwards = {name: forwards[name] for name in dict.fromkeys(wanted.values()) if name in forwards}
    outputs = report.judged(forwards, lambda _, o: None if args.whole else o)

    def call(name, plain):
        torch.use_deterministic_algorithms(name in FLAGGED)
        try:
            o = forwards[plain]() if args.whole else outputs[plain]
            return torch.autograd.grad(o, inputs, d_o, retain_graph=not args.whole)
        finally:
            torch.use_deterministic_algorithms(False)

    return {name: functools.partial(call, name, plain) for name, plain in wanted.items() if plain in outputs}


def check(found, references):
    """Returns {name: verdict} of the gradients {name: [tensor]}. `references` yields float64's gradients, those of naive products in the
    inputs' precision, and the function that returns their part of a library's gradients."""
    worst = {name: {"passed": True, "error": 0.0, "tolerance": 0.0, "parts": 0.0} for name in found}
    for exact, naive, part in references:
        for at, (right, rounded) in enumerate(zip(exact, naive)):
            tolerance = 2 * (rounded.double() - right).abs().max().item() + 1e-5
            for name, of in found.items():
                error, verdict = (part(of)[at].double() - right).abs().max().item(), worst[name]
                # A NaN makes these comparisons false.
                verdict["passed"] &= error <= tolerance
                if not error / tolerance <= verdict["parts"]:
                    verdict.update(error=error, tolerance=tolerance, parts=error / tolerance)
    return worst


def suite_of(kind, args):
    """Returns the suite of a row: what is timed, and the kind of the shape."""
    return f"{'forward+backward' if args.whole else 'backward'} {kind}"


def measured(of, kind, label, dtype, references, flops, args, rng):
    """Checks and times {name: call}, and returns the report's rows. A repeated call of FerroFlash must return equal bits. `flops` are
    the operations of a call, or None if no convention counts them."""
    found = report.judged(of, lambda _, gradients: gradients)
    verdicts = check(found, references)
    again = all(torch.equal(*pair) for pair in zip(found["ferroflash"], of["ferroflash"]()))
    verdicts["ferroflash"]["passed"] &= again
    del found
    label = f"{label} forward+backward" if args.whole else label
    speed = lambda us: None if flops is None else flops / us / 1e6
    row = {"suite": suite_of(kind, args), "label": label, "dtype": dtype, "timing": "cold"}
    said = lambda us: ("us" if flops is None else "TFLOP/s") + ("" if again else "  other bits")
    return report.measured(row, of, verdicts, args, rng, compare.measure, said, more=lambda us: {"tflops": speed(us)},
                           show=lambda us: f"{us if flops is None else speed(us):.0f}")


def options(text, peers):
    """Returns the parser of the options that all these scripts have."""
    parser = report.options(text, None)
    parser.add_argument("--whole", action="store_true", help="time the forward and the backward pass of one call")
    parser.add_argument("--match", help="run only shapes whose label contains this")
    parser.add_argument("--peers", nargs="*", default=peers)
    return parser


def run(todo, args):
    """Runs all (kind, label, work) in `todo`, and ends the program. `work` takes a generator of random numbers."""
    # With deterministic algorithms, PyTorch fills new tensors, which would take time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # The naive gradients round once for each product.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    report.main(lambda rng: [(suite_of(kind, args), label, functools.partial(work, rng)) for kind, label, work in todo
                             if not args.match or args.match in label], args, FASTEST)
