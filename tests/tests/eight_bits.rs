//! Products of eight bits in the simulator: scores that are 0 in f32.
use ferroflash::DType;
use ferroflash::kernels::{AttnInfo, Class, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use ferroflash::spec::attention;
use ferroflash_tests::{is_carried, simulator_with};
use half::f16;
use ptx_sim::Options;
use reference::{Case, Layout, Loaded, Reference};

/// The product of a row's scale and the scale of scores may be 0 in f32. Hidden keys then still have no
/// weight, and all others have one weight.
#[test]
fn scores_below_f32_are_all_equal() {
    let is_one = |e: &&AttnInfo| {
        (e.class(), e.dtype) == (Class::Quantised, DType::F16) && is_carried(e.contract.symbol)
    };
    let kernels: Vec<_> = attention().filter(is_one).collect();
    assert!(!kernels.is_empty(), "a build carries one");
    for entry in kernels {
        let mask = if entry.mask == MaskKind::Causal { Mask::Causal } else { Mask::Full };
        let problem = Problem::new(DType::F16, 1, 20, 1, entry.head_dim as usize).seqlen_k(70);
        let problem = problem.mask(mask).precision(entry.precision());
        let case = Case { scale: Some(1e-37), ..Case::tensors(problem, Layout::Bshd, 1) };
        let mut memory = case.memory();
        let smaller = |bits: u16| f16::from_f64(f16::from_bits(bits).to_f64() * 2_f64.powi(-22)).to_bits();
        memory.buffers[0].iter_mut().for_each(|bits| *bits = smaller(*bits));
        let exact = Reference::new(&memory.inputs().expect("a case")).exact;
        let (attention, symbol) = (simulator_with(entry, Options::default()), entry.contract.symbol);
        let launched = Loaded::new(&attention, &memory, Some(symbol)).and_then(|loaded| loaded.run());
        let outcome = launched.expect("runs");
        let o = outcome.o().iter().map(|bits| f16::from_bits(*bits).to_f64());
        let error: f64 = o.zip(&exact.out).map(|(a, b)| (a - b).abs()).sum();
        let all: f64 = exact.out.iter().map(|x| x.abs()).sum();
        assert!(error < 0.1 * all, "{symbol}: {error} of {all}");
        let lse = outcome.lse();
        let is_right = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-3;
        assert!(lse.iter().zip(&exact.lse).all(is_right), "{symbol}: {lse:?}");
    }
}
