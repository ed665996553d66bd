//! Numbers of eight bits in the simulator: errors against f64 on several kinds of inputs, and scores that are
//! 0 in f32.
use ferroflash::DType;
use ferroflash::driver::Harness;
use ferroflash::kernels::{AttnInfo, Class, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, KvScale, ListedKeys, LseView, Mask, Precision, TensorView,
};
use ferroflash_tests::{carried_kernels, check, run, simulator_with};
use half::f16;
use ptx_sim::{Kind as Finding, Options};
use reference::{Case, DeviceLengths, Layout, OnDevice, Outcome, Outputs, Reference, Work, soak};

/// A kind of inputs: its name, and what becomes of a normal number of Q (0), K (1) or V (2) in a row and
/// column.
type Kind = (&'static str, fn(usize, [usize; 2], f64) -> f64);

/// The inputs of docs/accuracy.md of which a kernel could lose the accuracy by a mistake in its rules.
const KINDS: [Kind; 6] = [
    ("normal", |_, _, x| x),
    ("outlier channels", |of, [_, column], x| match (of, column % 16) {
        (1, 3) => x + 12.0,
        (1, 7) => 4.0 * x,
        _ => x,
    }),
    ("offset of keys", |of, [_, column], x| if of == 1 && column < 4 { x + 70.0 } else { x }),
    ("peaked", |of, _, x| if of == 0 { 4.0 * x } else { x }),
    // A key that few queries see, or none, and which the mean of keys samples.
    ("large key", |of, [row, _], x| if (of, row) == (1, 0) { 1000.0 * x } else { x }),
    ("equal scores", |of, _, x| match of {
        0 => 0.0,
        1 => x,
        _ => x.abs() + 0.2,
    }),
];

/// The sum of all errors of O, relative to the sum of all magnitudes: the promise of a precision, and what it
/// is at most if all scores are equal and values positive.
fn promise(precision: Precision) -> [f64; 2] {
    match precision {
        Precision::Int8F16 => [0.03, 0.001],
        Precision::Int8Fp8 => [0.05, 0.004],
        _ => [0.1, 0.008],
    }
}

/// Whether products of f16 tensors, dense or varlen, have eight bits.
fn is_quantised(e: &AttnInfo, is_varlen: bool) -> bool {
    (e.class(), e.dtype, e.is_varlen()) == (Class::Quantised, DType::F16, is_varlen)
}

/// The sum of all errors of O in f16, and the sum of all magnitudes.
fn errors(outcome: &Outcome, exact: &Outputs) -> [f64; 2] {
    let o = outcome.o().iter().map(|bits| f16::from_bits(*bits).to_f64());
    let error = o.zip(&exact.out).map(|(a, b)| (a - b).abs()).sum();
    [error, exact.out.iter().map(|x| x.abs()).sum()]
}

#[test]
fn errors_are_those_of_the_class_on_each_kind_of_inputs() {
    for entry in carried_kernels(|e| is_quantised(e, false)) {
        let head_dim = entry.head_dim as usize;
        let mask = match entry.mask {
            MaskKind::Causal => Mask::Causal,
            MaskKind::Local => Mask::Window { left: Some(150), right: Some(0) },
            _ => Mask::Full,
        };
        let problem = Problem::new(DType::F16, 1, 20, 2, head_dim).seqlen_k(200).heads_k(1).mask(mask);
        let problem = problem.precision(entry.precision());
        let (attention, symbol) = (simulator_with(entry, Options::default()), entry.contract.symbol);
        for (name, change) in KINDS {
            let mut memory = Case::tensors(problem, Layout::Bshd, 3).memory();
            for (of, buffer) in memory.buffers.iter_mut().take(3).enumerate() {
                for (i, bits) in buffer.iter_mut().enumerate() {
                    let x = change(of, [i / head_dim, i % head_dim], f16::from_bits(*bits).to_f64());
                    *bits = f16::from_f64(x).to_bits();
                }
            }
            let exact = Reference::new(&memory.inputs().expect("a case")).exact;
            let [error, all] = errors(&run(&attention, symbol, &memory), &exact);
            let most = promise(entry.precision())[usize::from(name == "equal scores")];
            println!("{symbol}, {name}: {}", error / all);
            assert!(error > 0.0 && error <= most * all, "{symbol}, {name}: {}", error / all);
        }
    }
}

/// The product of a row's scale and the scale of scores may be 0 in f32. Hidden keys then still have no
/// weight, and all others have one weight.
#[test]
fn scores_below_f32_are_all_equal() {
    for entry in carried_kernels(|e| is_quantised(e, false)) {
        let mask = if entry.mask == MaskKind::Causal { Mask::Causal } else { Mask::Full };
        let problem = Problem::new(DType::F16, 1, 20, 1, entry.head_dim as usize).seqlen_k(70);
        let problem = problem.mask(mask).precision(entry.precision());
        let case = Case { scale: Some(1e-37), ..Case::tensors(problem, Layout::Bshd, 1) };
        let mut memory = case.memory();
        let smaller = |bits: u16| f16::from_f64(f16::from_bits(bits).to_f64() * 2_f64.powi(-22)).to_bits();
        memory.buffers[0].iter_mut().for_each(|bits| *bits = smaller(*bits));
        let exact = Reference::new(&memory.inputs().expect("a case")).exact;
        let (attention, symbol) = (simulator_with(entry, Options::default()), entry.contract.symbol);
        let outcome = run(&attention, symbol, &memory);
        let [error, all] = errors(&outcome, &exact);
        assert!(error < 0.1 * all, "{symbol}: {error} of {all}");
        let lse = outcome.lse();
        let is_right = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-3;
        assert!(lse.iter().zip(&exact.lse).all(is_right), "{symbol}: {lse:?}");
    }
}

/// `Int8F16` sums the probabilities that multiply values, which are rounded to the inputs' dtype. If all of
/// them are nearly equal, so are their errors, and the logarithm of their sum has the error of one.
#[test]
fn an_lse_has_the_error_of_a_rounded_probability() {
    let kind = (Class::Quantised, Precision::Int8F16, DType::Bf16, false);
    let is_one = |e: &AttnInfo| (e.class(), e.precision(), e.dtype, e.is_varlen()) == kind;
    let mut worst = 0.0;
    for entry in carried_kernels(|e| is_one(e) && e.mask != MaskKind::Local) {
        let mask = if entry.mask == MaskKind::Causal { Mask::Causal } else { Mask::Full };
        let problem = Problem::new(DType::Bf16, 1, 20, 2, entry.head_dim as usize).seqlen_k(200);
        let problem = problem.mask(mask).precision(Precision::Int8F16);
        let case = Case { scale: Some(1e-4), ..Case::tensors(problem, Layout::Bshd, 1) };
        let memory = case.memory();
        let reference = Reference::new(&memory.inputs().expect("a case"));
        let attention = simulator_with(entry, Options::default());
        check(&attention, entry, &case);
        let lse = run(&attention, entry.contract.symbol, &memory).lse();
        let errors = lse.iter().zip(&reference.exact.lse).map(|(a, b)| (f64::from(*a) - b).abs());
        worst = errors.fold(worst, f64::max);
    }
    assert!(worst > 2e-4, "{worst}: the error shows");
}

/// Whatever the offsets of sequences are, no access is out of bounds. A sequence may then have images that no
/// block of the kernel that quantises has written. Two sequences may have the same rows, whose races would
/// end a launch early.
#[test]
fn offsets_that_make_no_sense_stay_in_bounds() {
    let kernels = carried_kernels(|e| is_quantised(e, true) && e.head_dim == 64);
    assert!(kernels.len() > 2, "a build carries one for each precision");
    for entry in kernels {
        let valid = || std::iter::once(DeviceLengths::Filled);
        let device_lengths = valid().chain((0..4).map(DeviceLengths::Lost)).chain(valid()).collect();
        let work = Case { device_lengths, ..soak(entry, 1) }.memory();
        let options = Options { racecheck: false, max_reports: 10_000, ..Options::default() };
        let (attention, symbol) = (simulator_with(entry, options), entry.contract.symbol);
        let mut device = OnDevice::new(&attention, &work, Some(symbol)).expect("room");
        for round in 0..work.rounds() {
            device.change(work.changes(round)).expect("as long");
            let launched = device.run();
            let reports = attention.driver().take_reports();
            let is_valid = round == 0 || round + 1 == work.rounds();
            let may_be = |finding: &Finding| *finding == Finding::UninitialisedGlobal && !is_valid;
            assert!(reports.iter().all(|r| may_be(&r.kind)), "{symbol}, round {round}: {reports:?}");
            assert!(launched.is_ok() || !reports.is_empty(), "{symbol}, round {round}: {:?}", launched.err());
        }
    }
}

/// Keys of a sequence, and of a list, in a page of 32 keys.
const KEYS: i32 = 20;

/// A scale of latents in device memory may be 0. All scores are then 0, and keys that a sequence or a list
/// lacks still have no weight.
#[test]
fn a_scale_of_latents_that_is_zero_makes_scores_equal() {
    let is_latent = |e: &AttnInfo| matches!(e.class(), Class::Latent | Class::Listed);
    let kernels = carried_kernels(|e| is_latent(e) && e.kv_dtype == DType::E4m3);
    assert!(kernels.len() > 1, "a build carries one for each class");
    for entry in kernels {
        let (attention, symbol) = (simulator_with(entry, Options::default()), entry.contract.symbol);
        let card = attention.driver();
        let upload = |bytes: &[u8]| {
            let mut buffer = card.allocate(bytes.len()).expect("memory");
            card.upload(&mut buffer, bytes).expect("uploaded");
            buffer
        };
        // Queries and keys are 1.0; keys behind the last one are NaN.
        let one = if entry.dtype == DType::F16 { 0x3c00_u16 } else { 0x3f80 };
        let keys = (0..32).flat_map(|key| [if key < KEYS { 0x38_u8 } else { 0x7f }; 576]);
        let (q, keys) = (upload(&one.to_ne_bytes().repeat(576)), upload(&keys.collect::<Vec<_>>()));
        let (scale, o, lse) = (upload(&[0; 4]), upload(&[0xff; 1024]), upload(&[0xff; 4]));
        let slots: Vec<u8> = (0..24).flat_map(|i| (if i < KEYS { i } else { -1 }).to_ne_bytes()).collect();
        let (slots, length) = (upload(&slots), upload(&KEYS.to_ne_bytes()));
        let view = |buffer, dtype, columns| {
            TensorView::bshd(card.address(buffer), columns as u64, dtype, [1, 1, 1, columns])
        };
        let rows = TensorView::bshd(card.address(&keys), 32 * 576, DType::E4m3, [1, 32, 1, 576]);
        let of_keys = KvScale::Device { address: card.address(&scale), elements: 1, strides: [0, 0] };
        let pages = KvPages::latent(rows, 512).scales(of_keys, KvScale::One);
        let (of_q, of_o) = (view(&q, entry.dtype, 576), view(&o, entry.dtype, 512));
        let request = match entry.class() {
            Class::Listed => {
                let slots = Index::new(card.address(&slots), 24);
                AttentionRequest::sparse(of_q, ListedKeys::new(pages, slots, 24), of_o)
            }
            _ => {
                let cache = KvCache::dense(pages, Index::new(card.address(&length), 1));
                AttentionRequest::cached(of_q, cache, of_o).mask(Mask::Causal)
            }
        };
        let request =
            request.scale(0.1).config(symbol).lse(LseView::contiguous(card.address(&lse), 1, [1, 1, 1]));
        let (plan, stream) = (attention.plan(&request).expect("a plan"), card.stream().expect("a stream"));
        // SAFETY: the buffers are as large as their views say, and nothing else uses them.
        unsafe { attention.launch(&plan, &request, &stream) }.expect("launched");
        card.synchronize(&stream).expect("no finding");
        let (mut numbers, mut found) = ([0xff; 1024], [0; 4]);
        card.download(&o, &mut numbers).expect("read");
        card.download(&lse, &mut found).expect("read");
        assert!(numbers.chunks(2).all(|x| [x[0], x[1] & 0x7f] == [0, 0]), "{symbol}: O is not 0");
        let found = f32::from_ne_bytes(found);
        assert!((found - (KEYS as f32).ln()).abs() < 1e-3, "{symbol}: LSE {found}");
    }
}
