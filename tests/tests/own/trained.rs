//! Backward kernels of a caller's scores: gradients agree with f64, and errors in derivatives are found.
use super::*;
use cuda_builder::Arch;
use ferroflash::spec::{Causal, Scored, With};
use own_kernels::exact::MaskFn;
use own_kernels::trained::*;
use reference::variant::{Failure, Report, verify};

type Own = Capped<OwnSoftcap>;
type Parameters = And<And<(), OwnSoftcapParams>, And<[f32; 2], OwnSoftcapParams>>;

/// A variant of a kernel of dK and dV with this PTX, and of the kernel of dQ.
fn variant_of_two(dkdv: String) -> &'static Variant<Own> {
    let dq = module("capped_dq").text.clone();
    let kernels = vec![
        VariantKernel::new::<capped_dkdv::Kernel>("capped_dkdv", dkdv.leak()),
        VariantKernel::new::<capped_dq::Kernel>("capped_dq", dq.leak()),
    ];
    Box::leak(Box::new(Variant::new("capped", kernels.leak())))
}

fn run<M: MaskFn<Params = Parameters>>(variant: &'static Variant<M>) -> Result<Report, Failure> {
    let cap = |cap| OwnSoftcapParams { cap, reserved: 0 };
    verify(&card(), variant, |_, _| Ok(And::new(And::new((), cap(1.5)), And::new([0.05, 0.0], cap(1.0)))))
}

#[test]
fn scores_in_a_row_train() -> Result<(), Failure> {
    let report = run(variant_of_two(module("capped_dkdv").text.clone()))?;
    println!("{report}");
    let launches: Vec<_> = report.kernels.iter().map(|kernel| (kernel.symbol, kernel.launches)).collect();
    assert_eq!(launches, [("capped_dkdv", 9), ("capped_dq", 9)]);
    assert!(report.skipped.is_empty(), "{report}");
    Ok(())
}

#[test]
fn a_wrong_derivative_is_found_before_a_launch() {
    // These variants have no PTX.
    type Wrong<S> = With<DkDv<Capped<S>>>;
    let found = run(variant_of::<Wrong<Steep>>("steep", "// none".to_owned())).expect_err("too steep");
    assert!(matches!(found, Failure::Gradient { is_additive: false, .. }), "{found}");
    let words = found.to_string();
    for part in
        ["steep on dense tensors", "head 0", "position", "`ScoreMod::gradient` must be the derivative"]
    {
        assert!(words.contains(part), "{words}");
    }
    let found = run(variant_of::<Wrong<Forgetful>>("forgetful", "// none".to_owned())).expect_err("not 1");
    assert!(matches!(found, Failure::Gradient { .. }), "{found}");
    type Alone = With<DkDv<Scored<Causal, Forgetful>>>;
    let alone = variant_of::<Alone>("alone", "// none".to_owned());
    for cap in [1.5, 50.0] {
        let found = verify(&card(), alone, |_, _| Ok(And::new((), OwnSoftcapParams { cap, reserved: 0 })));
        let words = found.expect_err("not 1").to_string();
        assert!(
            words.contains("the derivative counts as 1: set it to false, and write `gradient`"),
            "{words}"
        );
    }
}

#[test]
fn a_kernel_with_another_derivative_than_its_functions_is_found() {
    let steep = module("steep_dkdv").text.replace("steep_dkdv", "capped_dkdv");
    let found = run(variant_of_two(steep)).expect_err("another derivative");
    let words = found.to_string();
    assert!(matches!(&found, Failure::Gradients { .. }) && words.contains("dk[batch "), "{words}");
}

#[test]
fn a_variant_without_a_kernel_of_dq_is_refused() {
    let kernels = variant::<capped_dkdv::Kernel>("capped_dkdv");
    let words = run(kernels).expect_err("no dQ").to_string();
    assert!(words.contains("it has no kernel that computes dQ"), "{words}");
}

#[test]
fn kernels_that_train_do_not_spill() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    let of_table = own_kernels::trained_table::learned_table::CONTRACT;
    let kernels = CudaBuilder::new(folder).entries([capped_dkdv::CONTRACT, capped_dq::CONTRACT, of_table]);
    kernels.check_on([Arch::Sm80]).build().expect("no rule is broken");
}
