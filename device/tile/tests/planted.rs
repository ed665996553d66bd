//! Tests that the simulator reports bugs that types do not prevent (docs/design/tiles.md). Each kernel
//! here is safe code with one bug; correct kernels stand beside them. The test needs the device compiler.

use std::path::Path;

use contract::Contract;
use cuda_builder::CudaBuilder;
use ptx_sim::{Gpu, Kind, Launch, Module, Options, Profile};

/// The name of each kernel, its number of threads, and kinds of reports. The simulator must report at least
/// one of these kinds. A line without kinds names a correct kernel, for which the simulator must report
/// nothing.
const KERNELS: &[(&str, u32, &[Kind])] = &[
    ("right", 128, &[]),
    ("a_warps_own_ring", 128, &[]),
    ("handed_over", 160, &[]),
    ("copied_twice", 128, &[Kind::PendingCopy, Kind::WriteAfterWrite]),
    ("not_copied", 128, &[Kind::UninitialisedShared]),
    ("past_the_first_tile", 128, &[Kind::OutOfBounds]),
    ("whole_past_the_end", 128, &[Kind::OutOfBounds]),
    ("a_head_that_is_not", 128, &[Kind::OutOfBounds]),
    ("stored_through_while_read", 128, &[Kind::WriteAfterRead, Kind::ReadAfterWrite]),
    ("advanced_by_one_warp", 128, &[Kind::MissingParticipants, Kind::Deadlock]),
    ("exchanged_by_one_warp", 128, &[Kind::UninitialisedShared, Kind::PendingCopy]),
    ("a_warp_in_a_branch", 128, &[Kind::DivergentSync]),
    ("rows_stored_by_all_warps", 128, &[Kind::GlobalRace]),
    ("words_left_by_all_warps", 128, &[Kind::WriteAfterWrite]),
    ("rows_by_two_numberings", 128, &[Kind::GlobalRace]),
    ("a_warp_in_a_lanes_loop", 128, &[Kind::DivergentSync]),
    ("produced_too_few", 160, &[Kind::Deadlock, Kind::Runaway]),
    ("consumed_too_few", 160, &[Kind::Deadlock, Kind::Runaway]),
];

/// The tensors have 128 rows of 64 columns of f16.
const ROWS: u32 = 128;
const ROW_BYTES: u32 = 128;
const TENSOR_BYTES: usize = (ROWS * ROW_BYTES) as usize;

/// The parameter of a contiguous tensor with one head.
fn tensor(base: u64) -> Vec<u8> {
    let head = u64::from(ROWS * ROW_BYTES);
    let words = [ROW_BYTES, ROWS, 8, 0].map(u32::to_le_bytes).concat();
    [[base, head, head].map(u64::to_le_bytes).concat(), words].concat()
}

/// The parameter of partial results with one split of one head. The divisor 1 has the layout of `FastDiv`.
fn partials(base: u64) -> Vec<u8> {
    let one = [1, 1 << 31, 31].map(u32::to_le_bytes).concat(); // divisor, multiplier, shift
    [[base; 2].map(u64::to_le_bytes).concat(), [ROWS, 1].map(u32::to_le_bytes).concat(), one, vec![0; 4]]
        .concat()
}

fn check(text: &str, symbol: &str, threads: u32, kinds: &[Kind]) {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{symbol}: {e}"));
    let options = Options { patience: 1 << 16, ..Options::default() };
    let mut gpu = Gpu::new(Profile::by_name("a100").unwrap(), options);
    let [q, k, o] = ["q", "k", "o"].map(|name| gpu.alloc(name, TENSOR_BYTES, 256).unwrap());
    let left = gpu.alloc("partials", ROWS as usize * 64 * 4, 256).unwrap();
    for buffer in [q, k] {
        gpu.fill(buffer, 0x3c, TENSOR_BYTES).unwrap();
    }
    let params = [tensor(q), tensor(k), tensor(o), partials(left)].concat();
    let (grid, block) = ([1; 3], [threads, 1, 1]);
    let dynamic_smem = 64 << 10;
    let launch = Launch { dynamic_smem, smem_opt_in: dynamic_smem, ..Launch::new(grid, block, &params) };
    let outcome = gpu.launch(&module, symbol, &launch).unwrap_or_else(|e| panic!("{symbol}: {e}"));
    let found: Vec<_> = outcome.reports.iter().map(|report| report.kind).collect();
    match kinds {
        [] => assert!(found.is_empty(), "{symbol}: {:?}", outcome.reports),
        _ => assert!(found.iter().any(|kind| kinds.contains(kind)), "{symbol}: {found:?}, not {kinds:?}"),
    }
    if symbol == "a_warps_own_ring" {
        let mut bytes = [0; 4];
        gpu.read(left, &mut bytes).unwrap();
        let value = half(0x3c3c) * ROWS as f32;
        assert_eq!(f32::from_le_bytes(bytes), value, "the sum of a column of K");
    }
}

/// The value of a normal f16.
fn half(bits: u16) -> f32 {
    f32::from_bits((u32::from(bits >> 10) + 112) << 23 | u32::from(bits & 0x3ff) << 13)
}

#[test]
fn what_types_do_not_catch_is_reported() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/planted");
    let builder = CudaBuilder::new(fixture).jobs(1);
    let builder = KERNELS
        .iter()
        .fold(builder, |builder, &(symbol, threads, _)| builder.entry(Contract::new(symbol, threads)));
    let output = builder.build().unwrap_or_else(|e| panic!("{e}"));
    for (module, (symbol, threads, kinds)) in output.modules.iter().zip(KERNELS) {
        assert_eq!(module.contract.symbol, *symbol);
        check(&module.text, symbol, *threads, kinds);
    }
}
