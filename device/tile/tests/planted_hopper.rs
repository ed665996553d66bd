//! Tests that the simulator reports bugs that types do not prevent in kernels with Hopper's instructions,
//! whichever copies and products complete first. The test needs the device compiler.

use std::path::Path;

use contract::{Contract, Target};
use cuda_builder::CudaBuilder;
use ptx_sim::{Completion, ElementType, Gpu, Kind, Launch, Module, Options, Profile, Swizzle, TensorMap};

/// The name of each kernel, and kinds of reports. Under every schedule, the simulator must report at least
/// one of these kinds. A line without kinds names a correct kernel, for which the simulator must report
/// nothing.
const KERNELS: &[(&str, &[Kind])] = &[
    ("right", &[]),
    ("loaded_too_few", &[Kind::Deadlock]),
    ("loaded_too_many", &[Kind::UnwaitedCopies]),
    ("loaded_what_was_sent", &[Kind::GlobalRace]),
    ("sent_to_the_keys", &[Kind::GlobalRace]),
    ("a_stage_skipped_by_one_warp", &[Kind::Wgmma]),
    ("a_map_that_the_host_did_not_encode", &[Kind::Misaligned]),
    ("a_map_of_larger_boxes", &[Kind::Deadlock]),
    ("a_warp_in_the_thread_that_copies", &[Kind::DivergentSync]),
    ("a_product_in_lanes_branches", &[Kind::DivergentSync]),
    ("a_product_by_one_warp", &[Kind::Deadlock]),
    ("rings_exchanged_by_one_warp", &[Kind::Wgmma]),
    ("a_rare_case_of_some_lanes", &[Kind::DivergentSync]),
    ("an_accumulator_that_is_not_set", &[Kind::Wgmma]),
    ("a_stage_forgotten", &[Kind::Deadlock]),
    ("sent_by_one_warp", &[Kind::Deadlock]),
    ("both_groups_send_the_same_rows", &[Kind::GlobalRace]),
];

/// The orders in which asynchronous work completes, each with the seed of its random numbers.
const SCHEDULES: [(Completion, u64); 4] =
    [(Completion::Late, 0), (Completion::Eager, 1), (Completion::Random, 2), (Completion::Random, 3)];

/// Size of shared memory in bytes. Q has two tiles, keys and values have two stages each with their
/// mbarriers, and O has two tiles.
const SMEM_BYTES: u32 = 16384 + 1024 + 2 * (16384 + 1024) + 16384;

/// Size in bytes of an f16 tensor with 128 rows and 64 columns.
const TENSOR_BYTES: usize = 128 * 64 * 2;

/// A tensor map of one head, in boxes of `rows` rows.
fn tensor_map(address: u64, rows: u32) -> Vec<u8> {
    let map = TensorMap {
        element: ElementType::F16,
        address,
        dims: &[64, 128, 1, 1],
        strides: &[128, 16384, 16384],
        box_dims: &[64, rows, 1, 1],
        element_strides: &[1; 4],
        swizzle: Swizzle::B128,
        fill_nan: false,
    };
    map.encode().unwrap().iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn check(module: &Module, symbol: &str, kinds: &[Kind]) {
    for (completion, seed) in SCHEDULES {
        let options = Options { patience: 1 << 16, seed, completion, ..Options::default() };
        let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), options);
        let tensors = ["q", "k", "v", "o"].map(|name| gpu.alloc(name, TENSOR_BYTES, 256).unwrap());
        for tensor in tensors {
            gpu.fill(tensor, 0x3c, TENSOR_BYTES).unwrap();
        }
        // The second warpgroup gets other queries, because two writes of the same value are no race.
        gpu.fill(tensors[0], 0x38, TENSOR_BYTES / 2).unwrap();
        let maps = [tensors.map(|tensor| tensor_map(tensor, 64)).concat(), tensor_map(tensors[1], 128)];
        let params = maps.concat();
        let launch = Launch {
            dynamic_smem: SMEM_BYTES,
            smem_opt_in: SMEM_BYTES,
            ..Launch::new([1; 3], [384, 1, 1], &params)
        };
        let outcome = gpu.launch(module, symbol, &launch).unwrap_or_else(|e| panic!("{symbol}: {e}"));
        let found: Vec<_> = outcome.reports.iter().map(|report| report.kind).collect();
        match kinds {
            [] => assert!(found.is_empty(), "{symbol}, {completion:?}: {:?}", outcome.reports),
            _ => assert!(
                found.iter().any(|kind| kinds.contains(kind)),
                "{symbol}, {completion:?}: {found:?}, not {kinds:?}"
            ),
        }
    }
}

#[test]
fn what_types_do_not_catch_is_reported() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/planted_hopper");
    let contract = |symbol| {
        Contract::new(symbol, 384).target(Target::Exactly(90)).smem_bytes(SMEM_BYTES).param_align(64)
    };
    let output = KERNELS
        .iter()
        .fold(CudaBuilder::new(fixture), |builder, &(symbol, _)| builder.entry(contract(symbol)))
        .jobs(1)
        .build()
        .unwrap_or_else(|e| panic!("{e}"));
    for (built, (symbol, kinds)) in output.modules.iter().zip(KERNELS) {
        assert_eq!(built.contract.symbol, *symbol);
        let module = Module::parse(&built.text).unwrap_or_else(|e| panic!("{symbol}: {e}"));
        check(&module, symbol, kinds);
    }
}
