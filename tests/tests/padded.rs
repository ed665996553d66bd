//! Tests padded queries and the largest scores of heads in the simulator: the integers of the divided
//! sequences, invalid integers, more sequences than a block divides, and that each clamp is needed.
//! `simulated.rs` compares results with the reference.
use ferroflash::driver::{Harness, SimBuffer, SimDriver};
use ferroflash::request::{
    AttentionRequest, Index, LseView, Mask, Scratch, Sinks, TensorView, VarlenKeys, VarlenQueries,
};
use ferroflash::spec::{Entry, HeadMaxima, UsedQueries};
use ferroflash::{Attention, DType, Plan, ptx};
use ferroflash_tests::clamps::{FILES, WithoutClamp, without_each_clamp};
use ferroflash_tests::is_carried;
use ptx_sim::Kind;

const HEADS: [usize; 2] = [2, 1];
const HEAD_DIM: usize = 64;
/// The integers of the divided sequences lie at multiples of this number of bytes.
const ALIGNMENT: usize = 128;

/// `cu_seqlens_q`, `cu_seqlens_k`, `seqused_k` and `seqused_q`.
type Integers = [Vec<i32>; 4];

/// What a launch writes: the divided sequences' offsets in Q and in K, and their lengths; O and the LSE; the
/// largest scores of heads. Elements that no kernel writes have all bits set.
#[derive(Debug, PartialEq)]
struct Written {
    divided: [Vec<i32>; 3],
    o: Vec<i32>,
    lse: Vec<i32>,
    heads: Vec<i32>,
    reports: Vec<Kind>,
}

/// A launch whose tensors end where their buffers end.
struct Launch<'a> {
    attention: &'a Attention<SimDriver>,
    plan: Plan,
    request: AttentionRequest<'static>,
    batch: usize,
    is_padded: bool,
    /// The workspace, O, the LSE and the largest scores of heads, with their sizes in bytes.
    outputs: [(SimBuffer, usize); 4],
    integers: Vec<SimBuffer>,
    /// Buffers that must outlive the launch.
    _others: Vec<SimBuffer>,
}

/// A simulator of a card that runs every portable kernel.
fn simulator() -> Attention<SimDriver> {
    Attention::new(SimDriver::new("l4").expect("a known card"))
}

impl<'a> Launch<'a> {
    /// Plans a launch of `batch` sequences of up to `most` queries and keys in tensors of these rows, with
    /// padded queries if `is_padded`, and with the largest scores of heads.
    fn new(
        attention: &'a Attention<SimDriver>,
        batch: usize,
        rows: [usize; 2],
        most: [usize; 2],
        is_padded: bool,
    ) -> Self {
        let driver = attention.driver();
        let allocate = |name, bytes: usize| driver.allocate_named(name, bytes).expect("room");
        let output = |name, bytes: usize| (allocate(name, bytes), bytes);
        let tensor = |name, rows: usize, heads: usize| {
            let elements = rows * heads * HEAD_DIM;
            let mut buffer = allocate(name, elements * 2);
            let bits = (0..elements).map(|i| (i as u16).wrapping_mul(0x9e37) & 0x87ff | 0x3000);
            driver
                .upload(&mut buffer, &bits.flat_map(u16::to_ne_bytes).collect::<Vec<_>>())
                .expect("as long");
            let view = TensorView::bshd(
                driver.address(&buffer),
                elements as u64,
                DType::F16,
                [1, rows, heads, HEAD_DIM],
            );
            (buffer, view)
        };
        let [(q, q_view), (o, o_view)] = ["q", "o"].map(|name| tensor(name, rows[0], HEADS[0]));
        let [(k, k_view), (v, v_view)] = ["k", "v"].map(|name| tensor(name, rows[1], HEADS[1]));
        let values = rows[0] * HEADS[0];
        let [lse, heads] = [output("lse", values * 4), output("heads", HEADS[0] * 4)];
        let lse_view = LseView::contiguous(driver.address(&lse.0), values as u64, [1, HEADS[0], rows[0]]);
        let heads_view = Sinks { address: driver.address(&heads.0), elements: HEADS[0] as u64 };
        let counts = [batch + 1, batch + 1, batch, batch];
        let integers = counts.map(|count| allocate("integers", count * 4));
        let index = |i: usize| Index::new(driver.address(&integers[i]), counts[i] as u64);
        let queries = VarlenQueries::new(batch, index(0), most[0]);
        let queries = if is_padded { queries.seqused_q(index(3)) } else { queries };
        let keys = VarlenKeys::new(index(1), most[1]).seqused_k(index(2));
        let request = AttentionRequest::varlen(q_view, k_view, v_view, o_view, queries, keys)
            .mask(Mask::Causal)
            .lse(lse_view)
            .max_logits_head(heads_view);
        let plan = attention.plan(&request.scratch(Scratch::Fastest)).expect("valid");
        let bytes = plan.scratch_bytes().workspace;
        let workspace = output("workspace", bytes as usize);
        let request = request.scratch(Scratch::workspace(driver.address(&workspace.0), bytes));
        let o = (o, values * HEAD_DIM * 2);
        let (outputs, integers) = ([workspace, o, lse, heads], integers.into());
        Launch { attention, plan, request, batch, is_padded, outputs, integers, _others: vec![q, k, v] }
    }

    /// Launches the plan with these integers.
    fn run(&mut self, integers: &Integers) -> Written {
        let driver = self.attention.driver();
        for (buffer, values) in self.integers.iter_mut().zip(integers) {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
            driver.upload(buffer, &bytes).expect("as long");
        }
        self.outputs.iter_mut().for_each(|(output, _)| driver.fill(output, 0xff).expect("is filled"));
        let stream = driver.stream().expect("a stream");
        // SAFETY: the buffers are as large as the views state, and the simulator checks each access.
        let launched = unsafe { self.attention.launch(&self.plan, &self.request, &stream) };
        let reports: Vec<Kind> = driver.take_reports().into_iter().map(|report| report.kind).collect();
        assert!(launched.is_ok() || !reports.is_empty(), "{launched:?}");
        let [workspace, o, lse, heads] = self.outputs.each_ref().map(|(output, size)| {
            let mut bytes = vec![0; *size];
            driver.download(output, &mut bytes).expect("as long");
            bytes.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect::<Vec<_>>()
        });
        if !self.is_padded {
            return Written { divided: [vec![], vec![], vec![]], o, lse, heads, reports };
        }
        let part = ((2 * self.batch + 1) * 4).next_multiple_of(ALIGNMENT) / 4;
        let counts = [2 * self.batch + 1, 2 * self.batch + 1, 2 * self.batch];
        let divided = [0, 1, 2].map(|i| workspace[i * part..][..counts[i]].to_vec());
        Written { divided, o, lse, heads, reports }
    }
}

/// The integers of divided sequences, by the rules of docs/limits.md.
fn divided([starts, starts_k, used_k, used_q]: &Integers, rows: usize) -> [Vec<i32>; 3] {
    let clamp = |start: i32| (start as u32).min(rows as u32);
    let batch = used_q.len();
    let (mut of_q, mut of_k, mut lengths) = (vec![], vec![], vec![]);
    for b in 0..batch {
        let [first, end] = [clamp(starts[b]), clamp(starts[b + 1])];
        let used = end.saturating_sub(first).min(used_q[b].max(0) as u32);
        of_q.extend([first as i32, (first + used) as i32]);
        of_k.extend([starts_k[b], starts_k[b + 1]]);
        lengths.extend([used_k[b], 0]);
    }
    of_q.push(clamp(starts[batch]) as i32);
    of_k.push(starts_k[batch]);
    [of_q, of_k, lengths]
}

/// Rows of Q and O, and of K and V.
const ROWS: [usize; 2] = [100, 120];

/// Valid integers of three sequences.
fn right() -> Integers {
    [vec![0, 30, 60, 100], vec![0, 40, 90, 120], vec![40, 3, 30], vec![20, 30, 0]]
}

/// Invalid numbers, and numbers that are off by one.
const GARBAGE: [i32; 8] = [0, -1, i32::MIN, i32::MAX, 31, 101, 121, 99];

/// Integers of which first each one is garbage, then all of one array, then all.
fn garbage() -> impl Iterator<Item = Integers> {
    let with = |is_it: &dyn Fn(usize, usize) -> bool, x: i32| {
        let mut all = right();
        for (array, numbers) in all.iter_mut().enumerate() {
            numbers.iter_mut().enumerate().filter(|(at, _)| is_it(array, *at)).for_each(|(_, n)| *n = x);
        }
        all
    };
    let mut all = vec![];
    for x in GARBAGE {
        let one = (0..4).flat_map(|array| (0..right()[array].len()).map(move |at| (array, at)));
        all.extend(one.map(|of| with(&|array, at| (array, at) == of, x)));
        all.extend((0..4).map(|of| with(&|array, _| array == of, x)));
        all.push(with(&|_, _| true, x));
    }
    let [starts, starts_k, used_k, used_q] = right();
    let falling = |starts: &[i32]| starts.iter().rev().copied().collect::<Vec<_>>();
    all.push([falling(&starts), starts_k.clone(), used_k.clone(), used_q.clone()]);
    all.push([vec![0, 60, 50, 50], falling(&starts_k), used_k, used_q]);
    all.into_iter()
}

/// Launches padded queries and the sequences that a caller would divide, and compares all outputs.
#[track_caller]
fn check(
    attention: &Attention<SimDriver>,
    rows: [usize; 2],
    most: [usize; 2],
    all: impl Iterator<Item = Integers>,
) -> usize {
    let mut launches: Option<[Launch<'_>; 2]> = None;
    let mut count = 0;
    for integers in all {
        let batch = integers[3].len();
        let [padded, apart] = launches.get_or_insert_with(|| {
            let of = |batch, is_padded| Launch::new(attention, batch, rows, most, is_padded);
            [of(batch, true), of(2 * batch, false)]
        });
        let own = padded.run(&integers);
        let divided = divided(&integers, rows[0]);
        assert_eq!(own.divided, divided, "{integers:?}");
        // Rows of two sequences may be written twice, but no other report is allowed.
        let others: Vec<_> = own.reports.iter().filter(|kind| **kind != Kind::GlobalRace).collect();
        assert!(others.is_empty(), "{integers:?}: {others:?}");
        let [starts, starts_k, used_k] = divided;
        let other = apart.run(&[starts, starts_k, used_k, vec![0; 2 * batch]]);
        if own.reports.is_empty() {
            assert!((&own.o, &own.lse) == (&other.o, &other.lse), "{integers:?}: O or LSE");
            assert_eq!(own.heads, other.heads, "{integers:?}");
            count += 1;
        }
    }
    count
}

#[test]
fn integers_of_every_kind_divide_by_the_rule() {
    let compared = check(&simulator(), ROWS, [70, 90], std::iter::once(right()).chain(garbage()));
    assert!(compared > 20, "{compared}");
}

/// A block divides 64 sequences. Here are 1 sequence, and as many as several blocks divide.
#[test]
fn one_sequence_and_hundreds() {
    let attention = simulator();
    let starts = |n: &dyn Fn(i32) -> i32, count: i32| {
        (0..=count).scan(0, |end, b| Some(std::mem::replace(end, *end + n(b)))).collect::<Vec<_>>()
    };
    for count in [1, 65, 200] {
        let [q, k] = [starts(&|b| b % 4, count), starts(&|b| 1 + b % 3, count)];
        let rows = [&q, &k].map(|starts| starts[count as usize].max(1) as usize);
        let used_k = (0..count).map(|b| b % 3).collect();
        let used_q = (0..count).map(|b| [0, 1, 2, 9, -5][b as usize % 5]).collect();
        assert_eq!(check(&attention, rows, [3, 3], std::iter::once([q, k, used_k, used_q])), 1);
    }
}

/// Valid integers, and integers that together need each clamp.
fn clamped() -> Vec<Integers> {
    let [q, k, used_k, used_q] = right();
    let with_q = |starts: [i32; 4]| [starts.to_vec(), k.clone(), used_k.clone(), used_q.clone()];
    let with_used = |used: [i32; 3]| [q.clone(), k.clone(), used_k.clone(), used.to_vec()];
    vec![
        right(),
        with_q([0, 30, 60, 101]),
        with_q([0, -1, 60, 100]),
        with_q([0, 60, 50, 50]),
        with_q([101, 30, 60, 90]),
        with_q([90, 60, 30, 0]),
        with_used([-1, 31, 99]),
        with_used([i32::MIN, i32::MAX, 0]),
        // No row sees a key, so a row behind the last one would be the largest.
        [vec![0, 30, 60, 150], k.clone(), vec![0; 3], vec![0; 3]],
        // All offsets end at row 1, which sees no key. Later rows of the first sequence do.
        [vec![0, 70, 70, 1], k.clone(), used_k.clone(), vec![70, 0, 0]],
    ]
}

/// Checks that one of the launches of [`clamped`] notices each clamp that is missing in a kernel of `count`
/// clamps, without those whose text has all of the words `superfluous`.
#[track_caller]
fn notices_each_clamp(symbol: &str, is_padded: bool, count: usize, superfluous: &[&str]) {
    assert!(is_carried(symbol), "{symbol}");
    let all = clamped();
    let run = |text: &str| {
        let attention = simulator();
        // SAFETY: the simulator checks every access.
        unsafe { attention.load_from(symbol, text).expect("loads") };
        let mut launch = Launch::new(&attention, 3, ROWS, [70, 90], is_padded);
        all.iter().map(|integers| launch.run(integers)).collect::<Vec<_>>()
    };
    let text = ptx::source(symbol).expect("embedded");
    let (right, mut mutants) = (run(&text), without_each_clamp(&text, &FILES));
    assert_eq!(mutants.len(), 2 * count, "{mutants:#?}");
    mutants.retain(|own| superfluous.is_empty() || !superfluous.iter().all(|word| own.clamp.contains(word)));
    for WithoutClamp { clamp, operand, text } in mutants {
        assert!(run(&text) != right, "{symbol} with operand {operand} for {clamp}");
    }
}

#[test]
fn a_clamp_that_is_missing_is_noticed() {
    // The longest sequence of the kernel's parameters has all rows of the tensor.
    let longest = ["min.u32", "cu_seqlens.longest"];
    notices_each_clamp(<UsedQueries as Entry>::CONTRACT.symbol, true, 5, &longest);
    // The offsets of divided sequences are within the tensor.
    notices_each_clamp(<HeadMaxima as Entry>::CONTRACT.symbol, false, 2, &[]);
}
