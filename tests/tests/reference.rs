//! Compares the reference with results that were computed by hand, and with a short implementation of the
//! definition.
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Mask};
use half::{bf16, f16};
use reference::{HostTensor, Inputs, Outputs, Random, exact, naive};

fn f16s(values: &[f32]) -> Vec<u16> {
    values.iter().map(|x| f16::from_f32(*x).to_bits()).collect()
}

/// A problem with one batch, one head, f16, and rows of `head_dim` numbers.
struct Tiny<'a> {
    head_dim: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    mask: Mask,
    alignment: Alignment,
    scale: f32,
    softcap: Option<f32>,
}

impl Default for Tiny<'_> {
    fn default() -> Self {
        let (mask, alignment) = (Mask::Full, Alignment::BottomRight);
        Tiny { head_dim: 1, q: &[], k: &[], v: &[], mask, alignment, scale: 1.0, softcap: None }
    }
}

impl Tiny<'_> {
    fn both(&self) -> [Outputs; 2] {
        let [q, k, v] = [self.q, self.k, self.v].map(f16s);
        let tensor = |bits| {
            let rows = <[u16]>::len(bits) / self.head_dim;
            HostTensor::bshd(bits, DType::F16, [1, rows, 1, self.head_dim]).expect("fits")
        };
        let problem = Problem::new(DType::F16, 1, k.len() / self.head_dim, 1, self.head_dim)
            .seqlen_q(q.len() / self.head_dim)
            .mask(self.mask)
            .alignment(self.alignment)
            .scale(self.scale)
            .softcap(self.softcap.unwrap_or_default());
        let inputs =
            Inputs::new(problem, tensor(&q), tensor(&k), tensor(&v)).expect("shapes belong together");
        [exact(&inputs), naive(&inputs)]
    }

    #[track_caller]
    fn check(&self, out: &[f64], lse: &[f64]) {
        let [exact, naive] = self.both();
        for (got, tolerance) in [(&exact, 1e-12), (&naive, 2e-3)] {
            for (name, got, want) in [("o", &got.out, out), ("lse", &got.lse, lse)] {
                assert_eq!(got.len(), want.len(), "{name}");
                let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= tolerance;
                assert!(
                    got.iter().zip(want).all(near),
                    "{name} within {tolerance}: {got:?}, should be {want:?}"
                );
            }
        }
    }
}

#[test]
fn equal_scores_give_the_mean() {
    let values = [1.0, 2.0, 3.0, 6.0];
    Tiny { q: &[0.0, 0.0], k: &[5.0, -3.0, 2.0, 1.0], v: &values, ..Tiny::default() }
        .check(&[3.0, 3.0], &[4f64.ln(), 4f64.ln()]);
}

#[test]
fn a_dominating_score_selects_its_value() {
    let (k, v) = ([0.0, 60.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    Tiny { head_dim: 2, q: &[0.0, 1.0, 1.0, 1.0], k: &k, v: &v, ..Tiny::default() }
        .check(&[1.0, 2.0, 1.0, 2.0], &[60.0; 2]);
}

#[test]
fn two_scores_by_hand() {
    // The scores are 1 and 0, so the probabilities are e / (e + 1) and 1 / (e + 1).
    let e = std::f64::consts::E;
    Tiny { q: &[2.0], k: &[1.0, 0.0], v: &[1.0, 0.0], scale: 0.5, ..Tiny::default() }
        .check(&[e / (e + 1.0)], &[(e + 1.0).ln()]);
}

#[test]
fn softcap_bounds_the_scores() {
    let cap: f64 = 2.0;
    let score = cap * (4.0f64 / cap).tanh();
    let p = score.exp() / (score.exp() + 1.0);
    Tiny { q: &[4.0], k: &[1.0, 0.0], v: &[1.0, 0.0], softcap: Some(2.0), ..Tiny::default() }
        .check(&[p], &[(score.exp() + 1.0).ln()]);
}

/// With uniform scores over values 0, 1, 2, .., each row's output is the mean of the first and last key that
/// the row sees.
#[track_caller]
fn check_visible(mask: Mask, alignment: Alignment, keys: usize, seen: &[Option<(usize, usize)>]) {
    let (zeros, values): (Vec<f32>, Vec<f32>) =
        (vec![0.0; seen.len().max(keys)], (0..keys).map(|x| x as f32).collect());
    let out: Vec<_> = seen.iter().map(|seen| seen.map_or(0.0, |(a, b)| (a + b) as f64 / 2.0)).collect();
    let count = |seen: &Option<(usize, usize)>| seen.map_or(0.0, |(a, b)| (b - a + 1) as f64);
    let lse: Vec<_> = seen.iter().map(|seen| count(seen).ln()).collect();
    let (q, k) = (&zeros[..seen.len()], &zeros[..keys]);
    Tiny { q, k, v: &values, mask, alignment, ..Tiny::default() }.check(&out, &lse);
}

#[test]
fn causal_bottom_right() {
    let check = |keys, seen: &[_]| check_visible(Mask::Causal, Alignment::BottomRight, keys, seen);
    check(3, &[Some((0, 0)), Some((0, 1)), Some((0, 2))]);
    check(4, &[Some((0, 2)), Some((0, 3))]);
    check(2, &[None, None, Some((0, 0)), Some((0, 1))]);
}

#[test]
fn causal_top_left() {
    for (keys, seen) in [
        (4, &[Some((0, 0)), Some((0, 1))][..]),
        (2, &[Some((0, 0)), Some((0, 1)), Some((0, 1)), Some((0, 1))]),
    ] {
        check_visible(Mask::Causal, Alignment::TopLeft, keys, seen);
    }
}

#[test]
fn windows_hold_both_ends() {
    let window = |left, right| Mask::Window { left, right };
    let bottom_right = Alignment::BottomRight;
    let rows = [Some((0, 2)), Some((0, 3)), Some((1, 4)), Some((2, 4)), Some((3, 4))];
    check_visible(window(Some(1), Some(2)), bottom_right, 5, &rows);
    check_visible(window(Some(0), Some(0)), bottom_right, 3, &[Some((0, 0)), Some((1, 1)), Some((2, 2))]);
    check_visible(window(Some(0), None), Alignment::TopLeft, 2, &[Some((0, 1)), Some((1, 1)), None]);
    check_visible(window(None, Some(1)), Alignment::TopLeft, 4, &[Some((0, 1)), Some((0, 2))]);
    let rows = [None, None, None, Some((0, 0)), Some((0, 1)), Some((0, 1))];
    check_visible(window(Some(1), Some(1)), bottom_right, 2, &rows);
    check_visible(window(None, None), bottom_right, 3, &[Some((0, 2))]);
}

#[test]
fn naive_rounds_every_step() {
    // The scores are 0 and f16(1/3); first P is rounded, then O.
    let third = f16::from_f32(1.0 / 3.0).to_f32();
    let (e0, e1) = ((-third).exp(), 1.0f32);
    let p = [e0 / (e0 + e1), e1 / (e0 + e1)].map(|x| f16::from_f32(x).to_f32());
    let want = f16::from_f32(p[0] * 3.0 + p[1] * 7.0).to_f32();
    let [_, naive] =
        Tiny { q: &[1.0], k: &[0.0, 1.0], v: &[3.0, 7.0], scale: 1.0 / 3.0, ..Tiny::default() }.both();
    assert_eq!(naive.out, [f64::from(want)]);
}

/// Computes attention by its definition, row by row, for contiguous tensors.
fn definition(p: &Problem, q: &[u16], k: &[u16], v: &[u16]) -> Outputs {
    let Problem { batch, seqlen_q: sq, seqlen_k: sk, heads_q: hq, heads_k: hk, head_dim, .. } = *p;
    let number = |bits| match p.dtype {
        DType::F16 => f16::from_bits(bits).to_f64(),
        DType::Bf16 => bf16::from_bits(bits).to_f64(),
        other => panic!("no case is in {other:?}"),
    };
    let at = |x: &[u16], s: usize, h: usize, n, i, m, d| number(x[((n * s + i) * h + m) * head_dim + d]);
    let mut outputs = Outputs { out: vec![], ..Outputs::without_keys([batch, sq, hq, head_dim]) };
    for (n, i, m) in (0..batch).flat_map(|n| (0..sq).flat_map(move |i| (0..hq).map(move |m| (n, i, m)))) {
        let kv = m / (hq / hk);
        let sees = |j: &usize| {
            let offset = *j as i64 - i as i64 - (sk as i64 - sq as i64);
            let (left, right) = p.mask.sides();
            left.is_none_or(|left| -i64::from(left) <= offset)
                && right.is_none_or(|right| offset <= i64::from(right))
        };
        let score = |j: usize| {
            let s =
                (0..head_dim).map(|d| at(q, sq, hq, n, i, m, d) * at(k, sk, hk, n, j, kv, d)).sum::<f64>();
            let s = s * f64::from(p.softmax_scale());
            p.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
        };
        let weights: Vec<_> = (0..sk).filter(sees).map(|j| (j, score(j).exp())).collect();
        let sum: f64 = weights.iter().map(|(_, w)| w).sum();
        for d in 0..head_dim {
            let o = weights.iter().map(|(j, w)| w * at(v, sk, hk, n, *j, kv, d)).sum::<f64>();
            outputs.out.push(if sum == 0.0 { 0.0 } else { o / sum });
        }
        outputs.lse[(n * hq + m) * sq + i] = sum.ln();
    }
    outputs
}

#[track_caller]
fn check_definition(p: Problem) {
    let Problem { dtype, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, .. } = p;
    let mut random = Random::new(7);
    let q = random.normals(dtype, batch * seqlen_q * heads_q * head_dim);
    let [k, v] = [(); 2].map(|()| random.normals(dtype, batch * seqlen_k * heads_k * head_dim));
    let tensor =
        |bits, rows, heads| HostTensor::bshd(bits, dtype, [batch, rows, heads, head_dim]).expect("fits");
    let [tk, tv] = [&k, &v].map(|bits| tensor(bits, seqlen_k, heads_k));
    let got = exact(&Inputs::new(p, tensor(&q, seqlen_q, heads_q), tk, tv).expect("valid"));
    let want = definition(&p, &q, &k, &v);
    let near = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-11;
    assert_eq!(got.shape, want.shape);
    assert!(got.out.len() == want.out.len() && got.out.iter().zip(&want.out).all(near), "{p:?}");
    assert!(got.lse.len() == want.lse.len() && got.lse.iter().zip(&want.lse).all(near), "{p:?}");
}

#[test]
fn agrees_with_the_definition() {
    let shape = |dtype, seqlen_q, seqlen_k, heads: [usize; 2], head_dim| {
        Problem::new(dtype, 2, seqlen_k, heads[1], head_dim).seqlen_q(seqlen_q).heads_q(heads[0])
    };
    let window = |left, right| Mask::Window { left: Some(left), right: Some(right) };
    check_definition(shape(DType::Bf16, 33, 70, [6, 2], 40));
    check_definition(shape(DType::F16, 33, 70, [4, 1], 64).mask(Mask::Causal).softcap(5.0));
    check_definition(shape(DType::F16, 70, 33, [2, 2], 8).mask(window(12, 3)));
    check_definition(shape(DType::Bf16, 1, 129, [3, 3], 16).mask(window(40, 0)).softcap(1.0).scale(0.7));
}

#[test]
fn strides_only_say_where_the_numbers_are() {
    let shape @ [batch, rows, heads, head_dim] = [2, 19, 3, 8];
    let mut random = Random::new(3);
    let tensors = [(); 3].map(|()| random.normals(DType::F16, batch * rows * heads * head_dim));
    let mut packed = vec![0; 3 * tensors[0].len()];
    for (t, tensor) in tensors.iter().enumerate() {
        for (row, bits) in tensor.chunks(heads * head_dim).enumerate() {
            packed[(row * 3 + t) * heads * head_dim..][..bits.len()].copy_from_slice(bits);
        }
    }
    let row = (3 * heads * head_dim) as i64;
    let strides = [rows as i64 * row, row, head_dim as i64, 1];
    let from = |t| HostTensor::new(&packed, t * heads * head_dim, DType::F16, shape, strides).expect("fits");
    let of = |t: usize| HostTensor::bshd(&tensors[t], DType::F16, shape).expect("fits");
    let problem = Problem::new(DType::F16, batch, rows, heads, head_dim);
    let run = |q, k, v| exact(&Inputs::new(problem, q, k, v).expect("valid"));
    assert_eq!(run(from(0), from(1), from(2)), run(of(0), of(1), of(2)));
}

#[test]
fn refuses_what_it_cannot_read() {
    let bits = [0; 48];
    let tensor = |shape| HostTensor::bshd(&bits, DType::F16, shape);
    let message = |shape| tensor(shape).expect_err("does not fit").to_string();
    assert!(message([1, 7, 1, 8]).contains("reach elements 0..=55, but the slice has 48"));
    assert!(message([1, 0, 1, 8]).contains("has a zero"));
    let strided = |offset, strides| HostTensor::new(&bits, offset, DType::F16, [1, 2, 1, 8], strides);
    assert!(strided(0, [0, -8, 0, 1]).is_err());
    assert!(strided(8, [0, -8, 0, 1]).is_ok());
    assert!(strided(0, [0, 16, 0, 2]).is_err());

    let valid = |shape| tensor(shape).expect("fits");
    let text = |problem, q, k, v| {
        let inputs = Inputs::new(problem, valid(q), valid(k), valid(v));
        inputs.map(|_| ()).expect_err("does not belong together").to_string()
    };
    let p = Problem::new(DType::F16, 1, 3, 2, 8).seqlen_q(2).heads_q(3);
    assert!(
        text(p, [1, 2, 3, 8], [1, 3, 2, 8], [1, 3, 2, 8]).contains("3 query heads cannot share 2 key heads")
    );
    assert!(
        text(p, [1, 2, 2, 8], [1, 3, 2, 8], [1, 3, 2, 8])
            .contains("q is F16 [1, 2, 2, 8], the problem needs F16 [1, 2, 3, 8]")
    );
    assert!(text(p, [1, 2, 3, 8], [1, 3, 2, 8], [1, 3, 1, 8]).starts_with("v is "));
}
