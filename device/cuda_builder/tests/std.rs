//! Builds kernels that use `cuda_std` without tensor cores, and runs them in the simulator.

use cuda_builder::Module;

fn built(symbol: &str) -> Module {
    let output = common::std().build().unwrap();
    output.modules.into_iter().find(|m| m.contract.symbol == symbol).expect("the fixture has it")
}

/// Runs `symbol` on one buffer of values, and compares the buffer afterwards with `after`.
#[track_caller]
fn check<T: Copy, const N: usize>(
    symbol: &str,
    (grid, block): ([u32; 3], [u32; 3]),
    bytes: fn(T) -> [u8; N],
    before: &[T],
    after: &[T],
) {
    let buffer = |values: &[T]| values.iter().flat_map(|&x| bytes(x)).collect::<Vec<u8>>();
    let left = common::run(&built(symbol), grid, block, &[buffer(before)]);
    assert_eq!(left, [buffer(after)], "{symbol}");
}

#[test]
fn a_thread_knows_its_place_in_three_dimensions() {
    let after: Vec<u32> = (0..2 * 3 * 4 * 5 * 6 * 7).map(|n| n + 1000 * 4 * 7).collect();
    check("place", ([2, 3, 4], [5, 6, 7]), u32::to_le_bytes, &vec![0; after.len()], &after);
}

#[test]
fn a_block_has_shared_memory_of_its_own() {
    check("total", ([4, 1, 1], [32, 1, 1]), u32::to_le_bytes, &[0], &[127 * 128 / 2]);
    let words: Vec<u64> = (0..32).map(|lane| 7 * (lane ^ 1)).collect();
    check("neighbours", ([1; 3], [32, 1, 1]), u64::to_le_bytes, &[0; 32], &words);
}

#[test]
fn atomics_are_one_step_for_every_type_and_scope() {
    // The values are: sum, smallest, largest, unchanged (the compared values differ), and the old value.
    let launch = ([2, 1, 1], [32, 1, 1]);
    check("each_u32", launch, u32::to_le_bytes, &[1, 40, 9, 99, 0], &[1 + 63 * 32, 0, 63, 99, 99]);
    check(
        "each_i32",
        launch,
        i32::to_le_bytes,
        &[1, 7, -80, 99, 0],
        &[1 + 63 * 32 - 50 * 64, -50, 13, 99, 99],
    );
    let high = |n: u64| n << 33;
    check(
        "each_u64",
        launch,
        u64::to_le_bytes,
        &[1, high(5), high(9), 99, 0],
        &[1 + high(63 * 32), 0, high(63), 99, 99],
    );
    check("each_f32", ([1; 3], [1; 3]), f32::to_le_bytes, &[1.5, 1.0, 0.0], &[2.0, 2.0, 1.0]);
}
