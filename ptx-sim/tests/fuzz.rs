//! Tests that no text makes the parser or the simulator panic.

use proptest::prelude::*;
use ptx_sim::{Gpu, Launch, LaunchError, Module, Options, Profile, mutate};

const KERNEL: &str = include_str!("../filetests/reduce.ptx");

/// Words that occur in compiled modules.
const WORDS: &[&str] = &[
    ".version 8.0",
    ".target sm_80",
    ".address_size 64",
    ".visible",
    ".entry",
    ".func",
    "k",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    ":",
    "@",
    "!",
    "|",
    "+",
    "-",
    "<9>",
    ".reg",
    ".b32",
    ".b64",
    ".pred",
    ".param",
    ".align 8",
    ".shared",
    ".local",
    ".extern",
    "%r",
    "%r1",
    "%rd2",
    "%p1",
    "p",
    "L",
    "bra",
    "bra.uni",
    "add.s32",
    "ld.global.u32",
    "st.shared.v4.b32",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "cp.async.wait_group",
    "setp.lt.and.s32",
    "mov.b64",
    "call.uni",
    "brx.idx",
    ".branchtargets",
    "0f3F800000",
    "0x7",
    "42",
    "_",
    "%tid.x",
    ".loc 1 2 3",
    ".file 1 \"a.rs\"",
    "\n",
    "ret",
    "bar.sync",
    "shfl.sync.bfly.b32",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    "mbarrier.init.shared::cta.b64",
    "mbarrier.test_wait.parity.shared.b64",
    "cp.async.mbarrier.arrive.noinc.shared.b64",
    "//",
    "/*",
    "*/",
    "\"",
];

fn launch(text: &str) {
    let Ok(module) = Module::parse(text) else { return };
    for entry in module.entries() {
        let options = Options { budget: 20_000, ..Options::default() };
        let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), options);
        let buffer = gpu.alloc("b", 4096, 256).unwrap();
        gpu.fill(buffer, 1, 4096).unwrap();
        if entry.param_bytes > 4096 {
            continue;
        }
        let mut params = vec![0; entry.param_bytes];
        params.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&buffer.to_le_bytes()));
        let block = entry.reqntid.unwrap_or([64, 1, 1]);
        let launch = Launch { dynamic_smem: 1024, ..Launch::new([2, 1, 1], block, &params) };
        let result = gpu.launch(&module, &entry.name, &launch);
        if let Err(LaunchError::Unsupported { line, .. }) = result {
            assert!(line > 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        let _ = Module::parse(&text);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Module::parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_words(words in prop::collection::vec(prop::sample::select(WORDS), 0..80)) {
        launch(&words.join(" "));
    }

    #[test]
    fn any_body(words in prop::collection::vec(prop::sample::select(WORDS), 0..40)) {
        let body = words.join(" ");
        launch(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {{ .reg .b32 \
            %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>; {body} }}"));
    }

    /// A compiled kernel of which some words are removed, doubled or exchanged.
    #[test]
    fn damaged_kernel(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3), 1..6,
        ),
    ) {
        let mut words: Vec<&str> = KERNEL.split(' ').collect();
        for (at, other, kind) in edits {
            let (at, other) = (at.index(words.len()), other.index(words.len()));
            match kind {
                0 => words[at] = "",
                1 => words.insert(at, words[other]),
                _ => words.swap(at, other),
            }
        }
        launch(&words.join(" "));
    }
}

#[test]
fn every_mutant_parses_and_runs() {
    let mutants = mutate::mutants(KERNEL, "reduce").unwrap();
    assert!(mutants.len() >= 5, "{mutants:#?}");
    for mutant in mutants {
        let text = mutant.apply(KERNEL);
        assert_eq!(text.lines().count(), KERNEL.lines().count(), "{}", mutant.description);
        Module::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", mutant.description));
        launch(&text);
    }
}
