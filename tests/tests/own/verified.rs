//! Verification of a caller's kernels (`reference::verify`): right kernels pass, and each planted error is
//! found. In some tests, a kernel has another kernel's PTX, so the device has an error that the functions do
//! not have.
use super::*;
use cuda_builder::Arch;
use ferroflash::spec::{F16, FastDiv, Full, Fwd, Scored, With};
use own_kernels::exact::{Broken, MaskFn};
use own_kernels::strided::{StridedParams, strided};
use reference::variant::{Buffers, Case, Failure, Report, verify};

fn run<M: MaskFn>(
    variant: &'static Variant<M>,
    params: impl Fn(&mut Buffers<'_, SimDriver>, &Case) -> Result<M::Params, Error>,
) -> Result<Report, Failure> {
    verify(&card(), variant, params)
}

fn slopes(buffers: &mut Buffers<'_, SimDriver>, case: &Case) -> Result<And<(), Integers>, Error> {
    Ok(And::new((), buffers.floats((0..case.heads[0]).map(|head| 0.5 / (head + 1) as f32))?))
}

/// The PTX of entry `of`, under the name `symbol`.
pub(super) fn renamed(of: &str, symbol: &str) -> String {
    module(of).text.replace(of, symbol)
}

#[test]
fn right_kernels_are_verified() -> Result<(), Failure> {
    let chunk = OwnChunkedParams { chunk: FastDiv::new(48).expect("a divisor"), reserved: 0 };
    let stride = StridedParams { first: 4, window: 60, step: 7, reserved: 0 };
    let reports = [
        run(variant::<own_causal::Kernel>("own_causal"), |_, _| Ok(()))?,
        run(variant::<own_causal_varlen::Kernel>("own_causal_varlen"), |_, _| Ok(()))?,
        run(variant::<own_chunked::Kernel>("own_chunked"), |_, _| Ok(chunk))?,
        run(variant::<own_alibi::Kernel>("own_alibi"), slopes)?,
        run(variant::<strided::Kernel>("strided"), |_, _| Ok(And::new(stride, ())))?,
    ];
    for report in reports {
        println!("{report}");
        assert!(report.skipped.is_empty() && report.kernels.iter().all(|kernel| kernel.launches >= 6));
    }
    Ok(())
}

#[test]
fn a_key_too_many_and_another_heads_slope_are_found() {
    let off = variant_of::<own_causal::Kernel>("own_causal", renamed("off_by_one", "own_causal"));
    let found = run(off, |_, _| Ok(())).expect_err("a query sees one key too many");
    let words = found.to_string();
    // A query whose own key is the last key cannot see a key too many.
    assert!(matches!(&found, Failure::Wrong { case, .. } if case.lengths[0] != [1, 1]), "{words}");
    for part in ["own_causal on dense tensors", "seed 1", "o[batch ", ", row ", ", head ", "allowed"] {
        assert!(words.contains(part), "{words}");
    }
    let other = variant_of::<own_alibi::Kernel>("own_alibi", renamed("other_head", "own_alibi"));
    let found = run(other, slopes).expect_err("another head's slope");
    assert!(matches!(found, Failure::Wrong { .. }), "{found}");
}

#[test]
fn holes_where_a_mask_says_none_are_found_before_a_launch() {
    let wild = |whole, starts, ends| WildParams { starts, ends, whole, holes: 40, reserved: 0 };
    let dense = variant::<wild::Kernel>("wild");
    let broken = |params| match run(dense, |_, _| Ok(params)) {
        Err(Failure::Broken { rule, .. }) => rule,
        other => panic!("{other:?}"),
    };
    let rule = broken(wild([0, 41], [0; 4], [1000; 4]));
    assert!(matches!(rule, Broken::Whole { k: 0, .. }), "{rule}");
    let rule = broken(wild([0, 0], [0, 1, 0, 1], [1000; 4]));
    assert!(matches!(rule, Broken::Falls { .. }), "{rule}");
    run(dense, |_, _| Ok(wild([41, 100], [0; 4], [1000; 4]))).expect("these keys have no holes");

    // Verification finds the broken rule before it loads a kernel, so this test needs no PTX.
    type Lies = With<Fwd<F16, HiddenHoles, 8, 2, 1, 4, 4, 4, 2>>;
    let found = run(variant_of::<Lies>("lies", "// none".to_owned()), |_, _| Ok(()));
    let found = found.expect_err("holes").to_string();
    assert!(found.contains("sees(3, 3) is false, but `HOLES` is false"), "{found}");
}

#[test]
fn a_function_that_panics_is_a_failure_before_a_launch() {
    type Masked = With<Fwd<F16, Divides<false>, 8, 2, 1, 4, 4, 4, 2>>;
    type InScores = With<Fwd<F16, Scored<Full, Divides<true>>, 8, 2, 1, 4, 4, 4, 2>>;
    // Verification runs the functions before it loads a kernel, so these variants need no PTX.
    let masked = variant_of::<Masked>("masked", "// none".to_owned());
    let scored = variant_of::<InScores>("scored", "// none".to_owned());
    let all = [
        (run(masked, |_, _| Ok(0)), "a function panics on sequence 0, head 0: ", "divisor of zero"),
        (run(scored, |_, _| Ok(And::new((), 0))), "a function panics on sequence 0, head 0: ", "by zero"),
        (run(masked, |_, _| panic!("no {}", "table")), "the closure that makes the parameters", ": no table"),
    ];
    for (report, place, message) in all {
        let found = report.expect_err("a panic");
        let words = found.to_string();
        assert!(matches!(found, Failure::Panicked { .. }), "{words}");
        assert!(words.contains(place) && words.contains(message) && words.contains(", seed 1: "), "{words}");
    }
    // A load outside of the tables panics on the host.
    let far = run(
        variant_of::<With<Fwd<F16, Scored<Full, OwnAlibi>, 8, 2, 1, 2, 4, 4, 2>>>(
            "own_alibi",
            "// none".to_owned(),
        ),
        |_, _| Ok(And::new((), Integers { base: 1 << 40, count: 4, reserved: 0 })),
    );
    let words = far.expect_err("no table").to_string();
    assert!(words.contains("loads 4 bytes at device address 0x10000000000"), "{words}");
}

/// On the device, parameters alone describe memory: safe code of a mask makes no description and changes
/// none.
#[test]
fn a_mask_that_describes_memory_does_not_compile() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    for (feature, code, types) in [
        ("forged-made", "E0451", ["Integers`", "SinkParams`", "Head`"]),
        ("forged-changed", "E0616", ["Integers`", "PerHead`", "BiasParams`"]),
    ] {
        let forged = CudaBuilder::new(&folder).features([feature]).entry(own_causal::CONTRACT).build();
        let words = forged.map(|_| ()).expect_err("descriptions").to_string();
        let errors: Vec<_> = words.lines().filter(|line| line.starts_with("error[")).collect();
        assert_eq!(errors.len(), types.len(), "{words}");
        for of in types {
            let is_private = |line: &&&str| line.contains(code) && line.contains(of);
            assert!(errors.iter().any(|line| is_private(&line)), "{of}: {words}");
        }
    }
}

/// Checks the words for a kernel that spills.
#[test]
fn a_spill_is_described_by_the_build() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    let spilled = own_kernels::block_sparse::neighbours_spilled::CONTRACT;
    let built = CudaBuilder::new(folder).entry(spilled).check_on([Arch::Sm80]).build();
    let words = built.map(|_| ()).expect_err("a spill").to_string();
    for part in ["neighbours_spilled on sm_80: spills", "keep fewer registers alive at once", "smaller tile"]
    {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_missing_clamp_is_reported_by_the_simulator() {
    // There are fewer slopes than heads, so the clamp gives the last slope to the remaining heads.
    let one = |buffers: &mut Buffers<'_, SimDriver>, _: &Case| Ok(And::new((), buffers.floats([0.25])?));
    run(variant::<own_alibi::Kernel>("own_alibi"), one).expect("indices are clamped");
    let text = &module("own_alibi").text;
    let clamps: Vec<_> = text.lines().filter(|line| line.contains("min.u32")).collect();
    // Each clamp becomes a copy of one of its operands: the index, or the last index.
    let mutants = clamps.iter().flat_map(|clamp| {
        let registers = clamp.split([' ', '\t', ',', ';']).filter(|part| part.starts_with('%'));
        let registers: Vec<_> = registers.collect();
        let copies = registers[1..].iter().map(|from| format!("\tmov.b32 {}, {from};", registers[0]));
        copies.map(|copy| text.replacen(clamp, &copy, 1)).collect::<Vec<_>>()
    });
    let reports: Vec<_> = mutants
        .map(|mutant| run(variant_of::<own_alibi::Kernel>("own_alibi", mutant), one))
        .map(|report| report.err().map_or(String::new(), |error| error.to_string()))
        .collect();
    assert!(reports.iter().any(|report| report.contains("out-of-bounds: read of 4 bytes")), "{reports:?}");
}
