// The parts of the evidence, in the order of the page: prefix of their files' names, heading, content, view.
"use strict";
const PARTS = [
  [
    "verify",
    "Right: every kernel against f64",
    "Every kernel on its grid of problems, within twice the error of a naive 16-bit implementation. With " +
      "--all-configs, also every configuration of the lineage, on the headline workload (f16, batch 1 and " +
      "2, 8 heads, 512 queries and keys, head dim 64) and on the smallest problem on which the predecessor " +
      "failed: no element may be off by 0.002 or more, and the predecessor's best kernel was off by 0.34.",
    verify,
  ],
  [
    "lineage",
    "Side by side: CUDA cores, tensor cores, FlashAttention-2, cuDNN",
    "The headline workload, in every configuration and in the peers, in one run on the same tensors: " +
      "microseconds of a launch, and the speed relative to FlashAttention-2. Configurations with the " +
      "predecessor's names are its designs.",
    lineage,
  ],
  [
    "compare",
    "Fast: against the peers",
    "All libraries run on the same tensors, in one process, with one timer. More TFLOP/s is better.",
    compare,
  ],
  [
    "serving",
    "Fast: serving",
    "Decode on dense and paged caches, ragged and varlen batches, graphs, append and merge, in CUDA " +
      "graphs, with cold and hot caches: the peer's time divided by FerroFlash's, suite by suite.",
    generic,
  ],
  [
    "variants",
    "Fast: masks, scores and biases",
    "ALiBi, softcap, sinks, biases, document masks and others, beside PyTorch's flex_attention on the " +
      "same tensors; functions of a caller (bench/own), if they are built.",
    generic,
  ],
  [
    "widths",
    "Fast: keys of 192 columns with values of 128",
    "Prefill of DeepSeek's attention, beside cuDNN and FlashAttention-4.",
    generic,
  ],
  [
    "backward",
    "Fast: gradients",
    "Backward passes, beside FlashAttention-2, cuDNN and FlashAttention-4 on the same tensors.",
    generic,
  ],
  [
    "mla",
    "Fast: decode on latent caches",
    "MLA decode with 16, 64 and 128 heads, beside FlashMLA, FlashInfer and SDPA, and beside the time of " +
      "its bytes and products.",
    generic,
  ],
  [
    "candle",
    "Fast: in candle, beside candle-flash-attn",
    "candle-flash-attn's own kernels (built by nvcc from its package), FerroFlash's kernels and candle's " +
      "plain path, in turns in one process: single calls, and a Llama end to end. Medians.",
    generic,
  ],
  [
    "generate",
    "Fast: text, end to end",
    "candle/examples/generate: prefill in chunks, then decode on a paged cache. Each step ends with its " +
      "tokens on the CPU. The last rows show continuous batching.",
    generic,
  ],
  [
    "base",
    "Fast: FerroFlash against an earlier commit",
    "Two commits of this repository in one process, on the same tensors, in shuffled order: the planner's" +
      " choices, and every kernel by itself.",
    base,
  ],
  [
    "growing",
    "Fast: keys with growing magnitudes",
    "The prefill comparison with keys times 4, and with keys times a ramp of 1 to 30. Row maxima keep " +
      "growing, so kernels rescale O more often.",
    compare,
  ],
  [
    "sustained",
    "Fast: launches back to back for half a second",
    "The prefill comparison at the clocks that the card's power limit permits for long runs.",
    compare,
  ],
  [
    "first-call",
    "From the program's start to the first output",
    "Milliseconds for the headline shape: the driver's start-up, the inputs, the load of the kernel (PTX," +
      " which the driver compiles, or machine code), the launch.",
    generic,
  ],
  [
    "bench",
    "Fast: by itself",
    "Times of a launch on the device: median, 90th percentile, throughput.",
    bench,
  ],
  [
    "report",
    "Other cards: measurements of their owners",
    "One command of the program, at most ten minutes: driver and clocks, a sample of every kernel family " +
      "compared with f64, every suite of `bench`. On an L4, also the model's prediction beside each " +
      "measurement.",
    report,
  ],
  [
    "sweep",
    "Sweep: the fastest kernel for each shape",
    "The time of every kernel that solves a shape; the fastest kernels run again in turns. The planner " +
      "reads the result.",
    sweep,
  ],
  [
    "sanitize",
    "Memory, races, barriers",
    "A check of every access of every kernel: bounds, alignment, initialisation, races, barriers. " +
      "compute-sanitizer checks on a GPU, the PTX simulator on other machines.",
    sanitize,
  ],
  [
    "mutation",
    "Mutation score: do the checks notice bugs?",
    "Each mutant has one planted bug in a kernel's PTX. The score is the share of mutants that the " +
      "simulator or the results reveal.",
    generic,
  ],
  [
    "program",
    "Tests and examples on the card",
    "The tests that need a GPU (both drivers, graphs, threads, tensors beyond 4 GiB), and the programs " +
      "that show how to embed FerroFlash.",
    program,
  ],
  [
    "shim",
    "The Python front",
    "ferroflash.py on torch's tensors, compared with f64, beside SDPA; streams, graphs, threads, refused " +
      "requests.",
    shim,
  ],
  [
    "invariance",
    "Batch invariance: a sequence's bits do not depend on its batch",
    "One sequence by itself and in random batches, in the batch-invariant mode: the results are equal in " +
      "every bit.",
    generic,
  ],
  [
    "peers",
    "FlashAttention's and FlashInfer's own tests",
    "The unmodified test files of both libraries, with FerroFlash in place of their modules: passed " +
      "tests, skipped tests with reasons, and tests left out because FerroFlash lacks the feature.",
    generic,
  ],
  [
    "agree",
    "The simulator against the card",
    "Equal inputs on the card and in the simulator: tensor-core products bit by bit, then every kernel's " +
      "outputs within the bounds of its arithmetic.",
    agree,
  ],
  [
    "soak",
    "Soak: one launch thousands of times",
    "Rounds of launches with a wait after each launch, after every 5, 10, 20, 25 and 50 launches, and " +
      "only at the end; from one thread, and from several threads with several streams. Results are equal " +
      "in every bit, and memory does not grow.",
    soak,
  ],
  [
    "fuzz",
    "Fuzz: random problems",
    "Random shapes, strides, masks and types compared with the reference. The same requests with one " +
      "fault are refused, and the error names the fault.",
    fuzz,
  ],
  [
    "profile",
    "Profile",
    "Tensor-pipe utilisation, achieved occupancy, bank conflicts and memory throughput of each kernel.",
    generic,
  ],
  [
    "ptx-stats",
    "Machine code: ptxas's report",
    "Registers, spills, shared memory and the main loop's instructions of every kernel on every target: " +
      "tests/golden/ptx-stats.txt, which ci holds equal to the kernels.",
    figures,
  ],
];
