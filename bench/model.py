"""Times a Llama of random weights from transformers, with FerroFlash in place of flash-attn, and with PyTorch's SDPA.

    python3 model.py --out model.json                          # prefill of 8192 tokens, 64 new tokens, a step of training of 4096
    python3 model.py --attention ferro --out model-ferro.json  # by ferroflash.register_with_transformers()

Without `--attention`, `ferroflash.install_as_flash_attn()` lets transformers find `flash_attn`. The other rows are attention of `sdpa` with FlashAttention-2 and
with cuDNN. All rows have the same weights and tokens; the losses of the steps must agree. A ratio is the other row's time divided by
FerroFlash's. Memory is the most that PyTorch allocated in the work.
"""
import argparse
import contextlib
import json
import random
import statistics
import sys
import time

import ferroflash

ferroflash.install_as_flash_attn()
ferroflash.register_with_transformers()
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

PEERS = {"fa2": ("sdpa", SDPBackend.FLASH_ATTENTION), "cudnn": ("sdpa", SDPBackend.CUDNN_ATTENTION)}


def model(attention):
    """Returns a model of 1e9 parameters, the same for each attention."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=16384, attn_implementation=attention, dtype=torch.bfloat16)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def prefill(of, tokens):
    with torch.no_grad():
        return of(tokens[:, :8192], logits_to_keep=1).logits


def generate(of, tokens):
    return of.generate(tokens[:, :1024], max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0)


def step(of, tokens):
    loss = of(tokens[:, :4096], labels=tokens[:, :4096]).loss
    loss.backward()
    of.zero_grad(set_to_none=True)
    return loss.detach()


WORK = {"prefill of 8192 tokens": prefill, "64 new tokens after 1024": generate, "forward and backward of 4096": step}


def measured(work, of, backend, tokens, rounds):
    """Returns milliseconds of each round, bytes of memory, and the result."""
    times = []
    with sdpa_kernel(backend) if backend else contextlib.nullcontext():
        work(of, tokens)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = work(of, tokens)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
    return times, torch.cuda.max_memory_allocated() - before, out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attention", default="flash_attention_2", choices=["flash_attention_2", "ferro"],
                        help="transformers' name of FerroFlash's attention")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    rng, rows = random.Random(1), []
    tokens = torch.randint(0, 32000, (1, 8192), generator=torch.Generator().manual_seed(1)).cuda()
    contenders = {"ferroflash": (args.attention, None), **PEERS}
    models = {name: (model(attention), backend) for name, (attention, backend) in contenders.items()}
    for label, work in WORK.items():
        # cuDNN makes a plan for each new number of keys, which takes a second.
        names = [name for name in models if name != "cudnn" or work is not generate]
        found = {name: measured(work, *models[name], tokens, args.rounds) for name in rng.sample(names, len(names))}
        medians = {name: statistics.median(times) for name, (times, _, _) in found.items()}
        for name, (times, memory, out) in found.items():
            # Greedy tokens of random weights may differ after a rounding; losses and logits may not.
            error = None if out.dtype == torch.int64 else (out.float() - found["fa2"][2].float()).abs().max().item()
            rows.append({"work": label, "peer": name, "ms": medians[name], "rounds_ms": times, "bytes": memory,
                         "ratio": medians[name] / medians["ferroflash"], "difference": error})
            print(f"{label:30} {name:10} {medians[name]:8.1f} ms  {memory / 2**20:7.0f} MiB  "
                  f"{rows[-1]['ratio']:.2f}  difference {error}", flush=True)
    if args.out:
        about = {"attention": args.attention, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "transformers": transformers.__version__}
        with open(args.out, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)
    sys.exit(any(row["difference"] is not None and not row["difference"] < 0.1 for row in rows))


if __name__ == "__main__":
    main()
