//! The parts of the evidence: what each kind of file contains, and which command makes it.

use serde_json::Value;

use super::elements::generic;
use super::show::{
    agree, base, bench, compare, fuzz, lineage, program, ptx_stats, report, sanitize, shim, soak, sweep,
    verify,
};

/// One kind of evidence.
pub struct Part {
    /// The prefix of the names of this part's files.
    pub name: &'static str,
    /// The part's heading.
    pub title: &'static str,
    /// A description of the part's content.
    pub about: &'static str,
    /// The command that makes the files.
    pub how: &'static str,
    /// A function that shows a file's content as HTML.
    pub show: fn(&Value) -> String,
}

/// The part of all files that no other part claims.
pub const OTHER: &str = "other";

/// All parts, in the order of the page.
pub const PARTS: &[Part] = &[
    Part {
        name: "verify",
        title: "Right: every kernel against f64",
        about: "Every kernel on its grid of problems, within twice the error of a naive 16-bit \
                implementation. With --all-configs, also every configuration of the lineage, on the \
                headline workload (f16, batch 1 and 2, 8 heads, 512 queries and keys, head dim 64) and on \
                the smallest problem on which the predecessor failed: no element may be off by 0.002 or \
                more, and the predecessor's best kernel was off by 0.34.",
        how: "./evidence.sh run verify-cache .. docs/evidence/<device>",
        show: verify,
    },
    Part {
        name: "lineage",
        title: "Side by side: CUDA cores, tensor cores, FlashAttention-2, cuDNN",
        about: "The headline workload, in every configuration and in the peers, in one run on the same \
                tensors: microseconds of a launch, and the speed relative to FlashAttention-2. \
                Configurations with the predecessor's names are its designs.",
        how: "python3 lineage.py docs/evidence/<device>/lineage.json",
        show: lineage,
    },
    Part {
        name: "compare",
        title: "Fast: against the peers",
        about: "All libraries run on the same tensors, in one process, with one timer. More TFLOP/s is \
                better.",
        how: "python3 bench/compare.py --out docs/evidence/<device>/compare.json",
        show: compare,
    },
    Part {
        name: "serving",
        title: "Fast: serving",
        about: "Decode on dense and paged caches, ragged and varlen batches, graphs, append and merge, in \
                CUDA graphs, with cold and hot caches: the peer's time divided by FerroFlash's, suite by \
                suite.",
        how: "python3 serving.py --out docs/evidence/<device>/serving.json",
        show: generic,
    },
    Part {
        name: "variants",
        title: "Fast: masks, scores and biases",
        about: "ALiBi, softcap, sinks, biases, document masks and others, beside PyTorch's flex_attention on \
                the same tensors; functions of a caller (bench/own), if they are built.",
        how: "python3 bench/variants.py --out docs/evidence/<device>/variants.json",
        show: generic,
    },
    Part {
        name: "widths",
        title: "Fast: keys of 192 columns with values of 128",
        about: "Prefill of DeepSeek's attention, beside cuDNN and FlashAttention-4.",
        how: "python3 bench/widths.py --out docs/evidence/<device>/widths.json",
        show: generic,
    },
    Part {
        name: "backward",
        title: "Fast: gradients",
        about: "Backward passes, beside FlashAttention-2, cuDNN and FlashAttention-4 on the same tensors.",
        how: "python3 bench/backward.py --out docs/evidence/<device>/backward.json",
        show: generic,
    },
    Part {
        name: "mla",
        title: "Fast: decode on latent caches",
        about: "MLA decode with 16, 64 and 128 heads, beside FlashMLA, FlashInfer and SDPA, and beside the \
                time of its bytes and products.",
        how: "python3 bench/mla.py --peers flash_mla flashinfer sdpa_math --out mla.json",
        show: generic,
    },
    Part {
        name: "candle",
        title: "Fast: in candle, beside candle-flash-attn",
        about: "candle-flash-attn's own kernels (built by nvcc from its package), FerroFlash's kernels and \
                candle's plain path, in turns in one process: single calls, and a Llama end to end. Medians.",
        how: "candle's bench: bench all --out docs/evidence/<device>/candle.json",
        show: generic,
    },
    Part {
        name: "generate",
        title: "Fast: text, end to end",
        about: "candle/examples/generate: prefill in chunks, then decode on a paged cache. Each step ends \
                with its tokens on the CPU. The last rows show continuous batching.",
        how: "generate bench --json docs/evidence/<device>/generate.json",
        show: generic,
    },
    Part {
        name: "base",
        title: "Fast: FerroFlash against an earlier commit",
        about: "Two commits of this repository in one process, on the same tensors, in shuffled order: the \
                planner's choices, and every kernel by itself.",
        how: "python3 compare.py --base FOLDER --peers --out docs/evidence/<device>/base.json",
        show: base,
    },
    Part {
        name: "growing",
        title: "Fast: keys with growing magnitudes",
        about: "The prefill comparison with keys times 4, and with keys times a ramp of 1 to 30. Row maxima \
                keep growing, so kernels rescale O more often.",
        how: "python3 bench/compare.py --only prefill --growing --out docs/evidence/<device>/growing.json",
        show: compare,
    },
    Part {
        name: "sustained",
        title: "Fast: launches back to back for half a second",
        about: "The prefill comparison at the clocks that the card's power limit permits for long runs.",
        how: "python3 bench/compare.py --only prefill --sustained --out \
              docs/evidence/<device>/sustained.json",
        show: compare,
    },
    Part {
        name: "first-call",
        title: "From the program's start to the first output",
        about: "Milliseconds for the headline shape: the driver's start-up, the inputs, the load of the \
                kernel (PTX, which the driver compiles, or machine code), the launch.",
        how: "CUDA_CACHE_DISABLE=1 ferroflash bench --first-call --json > \
              docs/evidence/<device>/first-call.json",
        show: generic,
    },
    Part {
        name: "bench",
        title: "Fast: by itself",
        about: "Times of a launch on the device: median, 90th percentile, throughput.",
        how: "ferroflash bench --json > docs/evidence/<device>/bench.json",
        show: bench,
    },
    Part {
        name: "report",
        title: "Other cards: measurements of their owners",
        about: "One command of the program, at most ten minutes: driver and clocks, a sample of every kernel \
                family compared with f64, every suite of `bench`. On an L4, also the model's prediction \
                beside each measurement.",
        how: "ferroflash report --output docs/evidence/<device>",
        show: report,
    },
    Part {
        name: "sweep",
        title: "Sweep: the fastest kernel for each shape",
        about: "The time of every kernel that solves a shape; the fastest kernels run again in turns. The \
                planner reads the result.",
        how: "ferroflash sweep --json > docs/evidence/<device>/sweep.json",
        show: sweep,
    },
    Part {
        name: "sanitize",
        title: "Memory, races, barriers",
        about: "A check of every access of every kernel: bounds, alignment, initialisation, races, barriers. \
                compute-sanitizer checks on a GPU, the PTX simulator on other machines.",
        how: "ferroflash sanitize --json > docs/evidence/<device or simulator>/sanitize.json",
        show: sanitize,
    },
    Part {
        name: "mutation",
        title: "Mutation score: do the checks notice bugs?",
        about: "Each mutant has one planted bug in a kernel's PTX. The score is the share of mutants that \
                the simulator or the results reveal.",
        how: "the mutation run writes docs/evidence/simulator/mutation.json",
        show: generic,
    },
    Part {
        name: "program",
        title: "Tests and examples on the card",
        about: "The tests that need a GPU (both drivers, graphs, threads, tensors beyond 4 GiB), and the \
                programs that show how to embed FerroFlash.",
        how: "./evidence.sh run programs docs/evidence/<device>",
        show: program,
    },
    Part {
        name: "shim",
        title: "The Python front",
        about: "ferroflash.py on torch's tensors, compared with f64, beside SDPA; streams, graphs, threads, \
                refused requests.",
        how: "python3 shim.py docs/evidence/<device>/shim.json",
        show: shim,
    },
    Part {
        name: "invariance",
        title: "Batch invariance: a sequence's bits do not depend on its batch",
        about: "One sequence by itself and in random batches, in the batch-invariant mode: the results are \
                equal in every bit.",
        how: "python3 invariance.py docs/evidence/<device>/invariance.json",
        show: generic,
    },
    Part {
        name: "peers",
        title: "FlashAttention's and FlashInfer's own tests",
        about: "The unmodified test files of both libraries, with FerroFlash in place of their modules: \
                passed tests, skipped tests with reasons, and tests left out because FerroFlash lacks the \
                feature.",
        how: "./evidence.sh run peers-flash-attention peers-flashinfer docs/evidence/<device>",
        show: generic,
    },
    Part {
        name: "agree",
        title: "The simulator against the card",
        about: "Equal inputs on the card and in the simulator: tensor-core products bit by bit, then every \
                kernel's outputs within the bounds of its arithmetic.",
        how: "ferroflash cross-check --device gpu --json > docs/evidence/<device>/agree.json",
        show: agree,
    },
    Part {
        name: "soak",
        title: "Soak: one launch thousands of times",
        about: "Rounds of launches with a wait after each launch, after every 5, 10, 20, 25 and 50 launches, \
                and only at the end; from one thread, and from several threads with several streams. Results \
                are equal in every bit, and memory does not grow.",
        how: "ferroflash soak --json > docs/evidence/<device>/soak.json",
        show: soak,
    },
    Part {
        name: "fuzz",
        title: "Fuzz: random problems",
        about: "Random shapes, strides, masks and types compared with the reference. The same requests with \
                one fault are refused, and the error names the fault.",
        how: "ferroflash fuzz --seconds 540 --json > docs/evidence/<device>/fuzz.json",
        show: fuzz,
    },
    Part {
        name: "profile",
        title: "Profile",
        about: "Tensor-pipe utilisation, achieved occupancy, bank conflicts and memory throughput of each \
                kernel.",
        how: "python3 nsight.py docs/evidence/<device>/profile.json",
        show: generic,
    },
    Part {
        name: "ptx-stats",
        title: "Machine code: ptxas's report",
        about: "Registers, spills, shared memory and tensor-core instructions (HMMA) of every kernel on \
                every target.",
        how: "cargo xtask evidence (without --as-is)",
        show: ptx_stats,
    },
];
