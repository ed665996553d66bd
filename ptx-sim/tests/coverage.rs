//! Tests that a mutant has the same results in a launch if the coverage of the original kernel shows that the
//! mutant behaves the same there.
use ptx_sim::mutate::{Operator, mutants};
use ptx_sim::{Coverage, Gpu, Launch, Module, Options, Profile};
use std::collections::BTreeSet;

/// A kernel that copies the first `n` words of `x` to `y`. `x` has `bytes` bytes. If there are more than
/// eight words, it copies them a second time.
const KERNEL: &str = "\
.version 7.8
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y, .param .u32 n, .param .u32 bytes)
{
    .shared .align 16 .b8 tile[128];
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [bytes];
    mov.u32 %r3, %tid.x;
    mul.wide.u32 %rd3, %r3, 4;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    shl.b32 %r4, %r3, 2;
    mov.u32 %r5, tile;
    add.u32 %r4, %r4, %r5;
    cp.async.ca.shared.global [%r4], [%rd1], 4, %r2;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 0;
    setp.lt.u32 %p1, %r3, %r1;
    @!%p1 bra DONE;
    ld.shared.u32 %r6, [%r4];
    st.global.u32 [%rd2], %r6;
    setp.gt.u32 %p2, %r1, 8;
    @%p2 st.global.u32 [%rd2+128], %r6;
DONE:
    ret;
}
";

/// The content of `y` after `text` has run, the number of reports, and the coverage.
fn run(text: &str, n: u32, bytes: u32) -> (Vec<u8>, usize, Coverage) {
    let module = Module::parse(text).unwrap();
    let options = Options { coverage: true, ..Options::default() };
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), options);
    let [x, y] = ["x", "y"].map(|name| gpu.alloc(name, 256, 16).unwrap());
    gpu.fill(x, 3, 256).unwrap();
    gpu.fill(y, 7, 256).unwrap();
    let params =
        [x.to_le_bytes().as_slice(), &y.to_le_bytes(), &n.to_le_bytes(), &bytes.to_le_bytes()].concat();
    let launch = Launch::new([1; 3], [32, 1, 1], &params);
    let outcome = gpu.launch(&module, "copy", &launch).unwrap();
    let mut left = vec![0; 256];
    gpu.read(y, &mut left).unwrap();
    (left, outcome.reports.len(), outcome.coverage)
}

#[test]
fn what_does_not_differ_leaves_the_same() {
    let all = mutants(KERNEL, "copy").unwrap();
    let (mut differ, mut idle) = (BTreeSet::new(), BTreeSet::new());
    for (n, bytes) in [(0, 4), (5, 4), (8, 0), (32, 4), (40, 4)] {
        let (left, reports, coverage) = run(KERNEL, n, bytes);
        assert_eq!(reports, 0, "n {n}");
        for mutant in &all {
            if mutant.differs(&coverage) {
                differ.insert(mutant.operator);
                continue;
            }
            idle.insert(mutant.operator);
            let broken = run(&mutant.apply(KERNEL), n, bytes);
            assert_eq!((&broken.0, broken.1), (&left, 0), "n {n}, bytes {bytes}: {}", mutant.description);
        }
    }
    let every: BTreeSet<Operator> = all.iter().map(|mutant| mutant.operator).collect();
    assert_eq!(differ, every);
    let never = [Operator::DeleteGuard, Operator::AlwaysBranch, Operator::NeverBranch, Operator::OffByOne];
    assert!(
        never.iter().chain([&Operator::ConstantSourceSize]).all(|operator| idle.contains(operator)),
        "{idle:?}"
    );
}

#[test]
fn off_by_one_differs_where_numbers_are_equal() {
    let all = mutants(KERNEL, "copy").unwrap();
    let differs = |n| {
        let (.., coverage) = run(KERNEL, n, 4);
        let comparisons = all.iter().filter(|mutant| mutant.operator == Operator::OffByOne);
        comparisons.map(|mutant| mutant.differs(&coverage)).collect::<Vec<_>>()
    };
    // Thread n passes the first comparison if n is below 32. The second one compares n with 8.
    assert_eq!(differs(5), [true, false]);
    assert_eq!(differs(8), [true, true]);
    assert_eq!(differs(32), [false, false]);
}
