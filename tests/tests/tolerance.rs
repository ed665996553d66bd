//! Tests the tolerance rule on results that each have one error.
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::Mask;
use half::f16;
use reference::{ENOUGH_ELEMENTS, HostTensor, Inputs, Random, Reference, Verdict};

const SHAPE: [usize; 4] = [1, 6, 2, 8];

fn problem([batch, rows, heads, head_dim]: [usize; 4]) -> Problem {
    Problem::new(DType::F16, batch, rows, heads, head_dim)
}

/// Judges the exact result after `change` was applied. Query 0 sees no key.
fn judge(change: impl FnOnce(&mut [u16], &mut [f32], &Reference)) -> Verdict {
    let mut random = Random::new(11);
    let [batch, rows, heads, head_dim] = SHAPE;
    let count = |rows| batch * rows * heads * head_dim;
    let q = random.normals(DType::F16, count(rows));
    let [k, v] = [(); 2].map(|()| random.normals(DType::F16, count(rows - 1)));
    fn tensor(bits: &[u16], rows: usize) -> HostTensor<'_> {
        HostTensor::bshd(bits, DType::F16, [SHAPE[0], rows, SHAPE[2], SHAPE[3]]).expect("fits")
    }
    let problem = problem(SHAPE).mask(Mask::Causal).seqlen_k(rows - 1);
    let inputs =
        Inputs::new(problem, tensor(&q, rows), tensor(&k, rows - 1), tensor(&v, rows - 1)).expect("valid");
    let reference = Reference::new(&inputs);
    let mut out = reference.exact.out_bits(DType::F16);
    let mut lse: Vec<f32> = reference.exact.lse.iter().map(|x| *x as f32).collect();
    change(&mut out, &mut lse, &reference);
    reference.judge(&tensor(&out, rows), Some(&lse)).expect("same shape")
}

/// The index in O of row 4, head 1, column 5.
const ELEMENT: usize = (4 * 2 + 1) * 8 + 5;

#[track_caller]
fn check(passes: bool, change: impl FnOnce(&mut [u16], &mut [f32], &Reference)) -> Verdict {
    let verdict = judge(change);
    assert_eq!(verdict.passed(), passes, "{:?}", verdict.worst());
    verdict
}

#[test]
fn the_exact_result_passes() {
    let verdict = check(true, |_, _, _| ());
    assert!(verdict.out.error > 0.0, "rounding to f16 shows");
}

#[test]
fn one_element_beyond_the_tolerance_fails_and_is_named() {
    let beyond = |factor: f64| {
        move |out: &mut [u16], _: &mut [f32], reference: &Reference| {
            out[ELEMENT] =
                f16::from_f64(reference.exact.out[ELEMENT] + factor * reference.tolerance).to_bits();
        }
    };
    check(true, beyond(0.5));
    let worst = check(false, beyond(2.0)).out;
    assert_eq!((worst.tensor, worst.batch, worst.row, worst.head, worst.column), ("o", 0, 4, 1, 5));
    assert!(worst.to_string().starts_with("o[batch 0, row 4, head 1, column 5] is "), "{worst}");
}

#[test]
fn what_is_not_a_number_fails_wherever_it_is() {
    for index in [0, ELEMENT, SHAPE.iter().product::<usize>() - 1] {
        for bits in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
            let verdict = check(false, |out, _, _| out[index] = bits.to_bits());
            assert_eq!(verdict.out.error, f64::INFINITY);
        }
    }
    check(false, |out, _, _| out.fill(f16::NAN.to_bits()));
    check(false, |_, lse, _| lse[7] = f32::NAN);
    check(false, |_, lse, _| lse.fill(f32::NAN));
}

#[test]
fn rows_with_no_key_are_zero_and_minus_infinity() {
    check(true, |out, lse, _| assert!(out[..16].iter().all(|x| *x == 0) && lse[0] == f32::NEG_INFINITY));
    check(true, |out, _, _| out[3] = f16::NEG_ZERO.to_bits());
    // The error is far below the tolerance of other rows, but no number of this row is rounded.
    let worst = check(false, |out, _, _| out[3] = f16::from_bits(1).to_bits()).out;
    assert_eq!((worst.row, worst.column, worst.tolerance), (0, 3, 0.0));
    check(false, |_, lse, _| lse[0] = -1e30);
    check(false, |_, lse, _| lse[6] = 0.0);
    check(false, |_, lse, _| lse[1] = f32::NEG_INFINITY);
}

#[test]
fn lse_has_a_tolerance_of_its_own() {
    check(true, |_, lse, reference| lse[9] += 0.5 * reference.lse_tolerance as f32);
    let verdict = check(false, |_, lse, reference| lse[9] += 2.0 * reference.lse_tolerance as f32);
    let worst = verdict.rows.lse.expect("there is one");
    assert_eq!((worst.tensor, worst.row, worst.head), ("lse", 3, 1));
    assert_eq!(verdict.failures().collect::<Vec<_>>(), [worst.to_string()]);
}

#[test]
fn nothing_passes_where_the_rule_has_no_bound() {
    // For these inputs, the steps of naive attention overflow f16, so the rule has no tolerance for them.
    let bits = vec![f16::MAX.to_bits(); 8];
    let tensor = HostTensor::bshd(&bits, DType::F16, [1, 1, 1, 8]).expect("fits");
    let problem = problem([1, 1, 1, 8]).scale(1.0);
    let reference = Reference::new(&Inputs::new(problem, tensor, tensor, tensor).expect("valid"));
    let verdict = reference.judge(&tensor, None).expect("same shape");
    assert_eq!(verdict.out.error, 0.0);
    assert!(!verdict.passed());
    let words = verdict.out.to_string();
    assert!(words.ends_with(
        "the tolerance rule has no bound for these inputs: naive attention in their dtype overflows or gives \
         NaN"
    ));
}

#[test]
fn results_of_another_shape_are_not_judged() {
    let bits = vec![0; 32];
    let tensor = |shape| HostTensor::bshd(&bits, DType::F16, shape).expect("fits");
    let shape = [1, 2, 2, 8];
    let inputs = Inputs::new(problem(shape), tensor(shape), tensor(shape), tensor(shape));
    let reference = Reference::new(&inputs.expect("valid"));
    assert!(reference.judge(&tensor([1, 4, 1, 8]), None).is_none());
    assert!(reference.judge(&tensor([1, 2, 2, 8]), Some(&[0.0; 3])).is_none());
}

/// The naive result of few elements may be exact by luck: with one key, O is V.
#[test]
fn few_elements_may_err_by_two_roundings() {
    let shape = |rows| [1, rows, 1, 8];
    let off = |rows: usize, roundings: f64| {
        let [q, k] = [rows, 1].map(|rows| vec![f16::ONE.to_bits(); rows * 8]);
        let v = vec![f16::from_f64(1.25).to_bits(); 8];
        fn tensor(bits: &[u16], shape: [usize; 4]) -> HostTensor<'_> {
            HostTensor::bshd(bits, DType::F16, shape).expect("fits")
        }
        let problem = problem(shape(rows)).seqlen_k(1);
        let [k, v] = [&k, &v].map(|bits| tensor(bits, shape(1)));
        let reference = Reference::new(&Inputs::new(problem, tensor(&q, shape(rows)), k, v).expect("valid"));
        assert_eq!(reference.naive_error, 0.0);
        let mut out = reference.exact.out_bits(DType::F16);
        out[5] = f16::from_f64(1.25 * (1.0 + roundings * f64::from(f16::EPSILON.to_f32()) / 2.0)).to_bits();
        reference.judge(&tensor(&out, shape(rows)), None).expect("same shape").passed()
    };
    assert!(off(16, 1.6) && !off(16, 3.2));
    let enough = ENOUGH_ELEMENTS / 8;
    assert!(off(enough, 0.0) && off(enough - 1, 1.6) && !off(enough, 1.6));
}
