//! Tests masks and scores of a caller. Kernels with a caller's copy of a built-in mask have the PTX of the
//! built-in kernel. Copies of softcap and slopes give the built-in results. Functions that misbehave cause no
//! access outside of the tensors. Verification finds planted errors. The tests need the device compiler.
#[path = "own/block_bias.rs"]
mod block_bias;
#[path = "own/trained.rs"]
mod trained;
#[path = "own/trained_table.rs"]
mod trained_table;
#[path = "own/verified.rs"]
mod verified;

use cuda_builder::{CudaBuilder, Module, lines};
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{AlibiSlopes, AttentionRequest, Index, KvCache, KvPages, LseView, TensorView};
use ferroflash::spec::{And, AttnKernel, Integers};
use ferroflash::variant::{Variant, VariantKernel};
use ferroflash::{Attention, DType, Error};
use half::f16;
use own_kernels::*;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::LazyLock;

/// The compiled kernels of `own_kernels`.
static MODULES: LazyLock<Vec<Module>> = LazyLock::new(|| {
    let contracts = [
        causal::CONTRACT,
        own_causal::CONTRACT,
        causal_varlen::CONTRACT,
        own_causal_varlen::CONTRACT,
        causal_hopper::CONTRACT,
        own_causal_hopper::CONTRACT,
        chunked::CONTRACT,
        own_chunked::CONTRACT,
        local::CONTRACT,
        own_softcap::CONTRACT,
        own_alibi::CONTRACT,
        wild::CONTRACT,
        wild_paged::CONTRACT,
        planted::CONTRACT,
        off_by_one::CONTRACT,
        other_head::CONTRACT,
        own_kernels::block_bias::distance::CONTRACT,
        own_kernels::block_bias::distance_blocks::CONTRACT,
        own_kernels::block_bias::distance_blocks_wrong::CONTRACT,
        own_kernels::block_bias::distance_twice::CONTRACT,
        own_kernels::strided::strided::CONTRACT,
        own_kernels::trained::capped_dkdv::CONTRACT,
        own_kernels::trained::capped_dq::CONTRACT,
        own_kernels::trained::steep_dkdv::CONTRACT,
        own_kernels::trained_table::learned_dkdv::CONTRACT,
        own_kernels::trained_table::learned_dq::CONTRACT,
        own_kernels::trained_table::learned_table::CONTRACT,
        own_kernels::trained_table::learned_table_wrong::CONTRACT,
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("own-kernels");
    CudaBuilder::new(folder).entries(contracts).build().expect("the kernels compile").modules
});

fn module(symbol: &str) -> &'static Module {
    MODULES.iter().find(|module| module.contract.symbol == symbol).expect("an entry")
}

/// A variant of one kernel.
fn variant<K: AttnKernel>(symbol: &'static str) -> &'static Variant<K::Mask>
where
    K::Mask: 'static,
{
    variant_of::<K>(symbol, module(symbol).text.clone())
}

/// A variant of one kernel with this PTX.
fn variant_of<K: AttnKernel>(symbol: &'static str, ptx: String) -> &'static Variant<K::Mask>
where
    K::Mask: 'static,
{
    let kernels = vec![VariantKernel::new::<K>(symbol, ptx.leak())];
    Box::leak(Box::new(Variant::new(symbol, kernels.leak())))
}

/// The lines of code without comments, with the registers of each class numbered in order of first use.
fn code(module: &Module, symbol: &str) -> Vec<String> {
    let (code, _) = lines::split(&module.text.replace(module.contract.symbol, symbol));
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let renumber = |line: &str| {
        let mut parts = line.split("//").next().unwrap_or(line).trim_end().split('%');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
            let (register, rest) = part.split_at(end);
            let class = register.trim_end_matches(|c: char| c.is_ascii_digit());
            let next = numbers.len();
            let number = *numbers.entry(register.to_owned()).or_insert(next);
            out += &if class == register {
                format!("%{class}{rest}")
            } else {
                format!("%{class}{number}{rest}")
            };
        }
        out
    };
    code.lines().map(renumber).filter(|line| !line.is_empty()).collect()
}

/// The number of times that each instruction occurs in a kernel.
fn instructions(module: &Module) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in code(module, "kernel").iter().filter(|line| line.ends_with(';')) {
        let is_predicate = |word: &&str| word.starts_with('@');
        let name = line.split_whitespace().find(|word| !is_predicate(word)).unwrap_or_default();
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn a_callers_copy_of_a_mask_has_the_built_in_kernels_ptx() {
    for (built_in, own) in
        [("causal", "own_causal"), ("causal_varlen", "own_causal_varlen"), ("chunked", "own_chunked")]
    {
        let [one, other] = [built_in, own].map(|symbol| code(module(symbol), "kernel"));
        let different = one.iter().zip(&other).position(|(a, b)| a != b);
        let lines = different.map(|at| (at, &one[at], &other[at]));
        assert_eq!(lines, None, "{own} is not {built_in}");
        assert_eq!(one.len(), other.len(), "{own} is not {built_in}");
        assert!(one.len() > 1000, "{built_in}: {} lines", one.len());
    }
    // Hopper's kernel adds 1 and the shift in another order, but each instruction occurs the same number of
    // times.
    let [one, other] = ["causal_hopper", "own_causal_hopper"].map(|symbol| instructions(module(symbol)));
    assert_eq!(one, other);
    // This comparison of two different masks shows that the check above can fail.
    assert_ne!(code(module("causal"), "kernel"), code(module("chunked"), "kernel"));
}

type Card = Attention<SimDriver>;
type Buffer = <SimDriver as Harness>::Buffer;

const HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const QUERIES: usize = 150;
const KEYS: usize = 200;

fn upload(card: &Card, bytes: &[u8]) -> (Buffer, u64) {
    let mut buffer = card.driver().allocate(bytes.len()).expect("memory");
    card.driver().upload(&mut buffer, bytes).expect("its size");
    let address = card.driver().address(&buffer);
    (buffer, address)
}

/// Pseudorandom numbers between -1 and 1.
fn numbers(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).flat_map(|_| next().to_le_bytes()).collect()
}

/// O as `[query][head][column]`, and the LSE as `[head][query]`.
#[derive(PartialEq)]
struct Results {
    o: Vec<f64>,
    lse: Vec<f32>,
}

impl Results {
    fn row(&self, query: usize, head: usize) -> &[f64] {
        &self.o[(query * HEADS + head) * HEAD_DIM..][..HEAD_DIM]
    }
}

/// Launches the request that `ask` makes of a plain request, with keys in tensors or in a cache. The
/// simulator checks every access.
///
/// # Errors
/// Returns the errors of planning and launching, with the simulator's reports.
fn run<'a>(
    card: &Card,
    cached: bool,
    ask: impl FnOnce(AttentionRequest<'a>) -> AttentionRequest<'a>,
) -> Result<Results, Error> {
    let row = HEADS * HEAD_DIM;
    let (_q, q) = upload(card, &numbers(1, QUERIES * row));
    let (_k, k) = upload(card, &numbers(2, KEYS * row));
    let (_v, v) = upload(card, &numbers(3, KEYS * row));
    let (o_buffer, o) = upload(card, &vec![0xff; QUERIES * row * 2]);
    let (lse_buffer, lse) = upload(card, &vec![0xff; QUERIES * HEADS * 4]);
    let (_lengths, lengths) = upload(card, &(KEYS as u32).to_le_bytes());
    let view = |address, rows| {
        TensorView::bshd(address, (rows * row) as u64, DType::F16, [1, rows, HEADS, HEAD_DIM])
    };
    let [q, o] = [q, o].map(|address| view(address, QUERIES));
    let [k, v] = [k, v].map(|address| view(address, KEYS));
    let lse = LseView::contiguous(lse, (QUERIES * HEADS) as u64, [1, HEADS, QUERIES]);
    let request = if cached {
        AttentionRequest::cached(q, KvCache::dense(KvPages::new(k, v), Index::new(lengths, 1)), o)
    } else {
        AttentionRequest::dense(q, k, v, o)
    };
    let request = ask(request.lse(lse));
    let (plan, stream) = (card.plan(&request)?, card.driver().stream()?);
    // SAFETY: the buffers are as large as their views say and live until the launch has run, and the
    // kernels' PTX was compiled from their types.
    unsafe { card.launch(&plan, &request, &stream)? };
    card.driver().synchronize(&stream)?;
    let mut o = vec![0; QUERIES * row * 2];
    card.driver().download(&o_buffer, &mut o)?;
    let mut lse = vec![0; QUERIES * HEADS * 4];
    card.driver().download(&lse_buffer, &mut lse)?;
    Ok(Results {
        o: o.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]]).to_f64()).collect(),
        lse: lse.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect(),
    })
}

fn card() -> Card {
    Attention::new(SimDriver::new("l4").expect("a card"))
}

fn worst<'r>(a: impl IntoIterator<Item = &'r f64>, b: impl IntoIterator<Item = &'r f64>) -> f64 {
    let off = a.into_iter().zip(b).map(|(a, b)| (a - b).abs());
    // NaN counts as the largest difference.
    off.fold(0.0, |most, off| if off <= most { most } else { off })
}

#[test]
fn a_callers_softcap_and_slopes_give_the_built_in_results() -> Result<(), Error> {
    let card = card();
    let local = variant::<local::Kernel>("local");
    let softcap = variant::<own_softcap::Kernel>("own_softcap");
    let alibi = variant::<own_alibi::Kernel>("own_alibi");
    let plain = run(&card, false, |request| request.variant(local, ()))?;

    let capped = run(&card, false, |request| request.softcap(0.5).variant(local, ()))?;
    let params = And::new((), OwnSoftcapParams { cap: 0.5, reserved: 0 });
    let own = run(&card, false, |request| request.variant(softcap, params))?;
    assert!(worst(&own.o, &capped.o) <= 1e-3, "{}", worst(&own.o, &capped.o));
    assert!(worst(&own.o, &plain.o) > 0.01, "the softcap changes nothing");

    let slopes: Vec<_> = [0.25f32, 0.0625].into_iter().flat_map(f32::to_le_bytes).collect();
    let (_slopes, base) = upload(&card, &slopes);
    let sloped =
        run(&card, false, |request| request.alibi(AlibiSlopes::new(base, HEADS as u64)).variant(local, ()))?;
    let params = And::new((), Integers { base, count: HEADS as u32, reserved: 0 });
    let own = run(&card, false, |request| request.variant(alibi, params))?;
    assert!(worst(&own.o, &sloped.o) <= 1e-3, "{}", worst(&own.o, &sloped.o));
    assert!(worst(&own.o, &plain.o) > 0.01, "the slopes change nothing");
    // The list has fewer slopes than there are heads. Reads must stay within the list, and the last slope
    // counts for the remaining heads.
    let params = And::new((), Integers { base, count: 1, reserved: 0 });
    run(&card, false, |request| request.variant(alibi, params))?;
    Ok(())
}

#[test]
fn intervals_out_of_range_stay_within_the_tensors() -> Result<(), Error> {
    const LEAST: i32 = i32::MIN;
    const MOST: i32 = i32::MAX;
    let card = card();
    let (dense, paged) = (variant::<wild::Kernel>("wild"), variant::<wild_paged::Kernel>("wild_paged"));
    let wild = |starts, ends, whole, holes| WildParams { starts, ends, whole, holes, reserved: 0 };
    let all = wild([0; 4], [MOST; 4], [0, MOST], -1);
    for params in [
        all,
        wild([LEAST; 4], [MOST; 4], [LEAST, MOST], MOST),
        wild([MOST; 4], [LEAST; 4], [MOST, LEAST], -1),
        wild([MOST; 4], [MOST; 4], [0, 0], -1),
        wild([LEAST; 4], [LEAST; 4], [LEAST, LEAST], -1),
        // The bounds decrease from one position to the next.
        wild([0, LEAST, MOST, 190], [MOST, 5, LEAST, 3], [-7, 1 << 20], 100),
        wild([250, 190, -5, 0], [300, 200, 1, 260], [300, 100], LEAST),
        // No query sees a key, and all keys are holes.
        wild([0; 4], [0; 4], [0, 0], -1),
        wild([0; 4], [MOST; 4], [0, 0], MOST),
    ] {
        for cached in [false, true] {
            let variant = if cached { paged } else { dense };
            let made = run(&card, cached, |request| request.variant(variant, params));
            let reports: String = card.driver().take_reports().iter().map(ToString::to_string).collect();
            let made = made.map_err(|error| panic!("{error}\n{reports}")).unwrap();
            assert_eq!(reports, "");
            // Values are between -1 and 1, so means of values are too. Rows without a key are 0.
            assert!(made.o.iter().all(|x| x.abs() <= 1.0), "a mean out of range");
            assert!(made.lse.iter().all(|lse| !lse.is_nan() && *lse < 20.0), "an LSE out of range");
        }
    }
    // Valid bounds give the plain result.
    let own = run(&card, false, |request| request.variant(dense, all))?;
    let plain = run(&card, false, |request| request.variant(variant::<local::Kernel>("local"), ()))?;
    assert!(worst(&own.o, &plain.o) <= 1e-3, "{}", worst(&own.o, &plain.o));
    Ok(())
}

#[test]
fn a_score_that_is_no_number_changes_its_row_alone() -> Result<(), Error> {
    const QUERY: usize = 40;
    let card = card();
    let planted = variant::<planted::Kernel>("planted");
    let with = |value: f32, key: i32| {
        let query = (QUERY + KEYS - QUERIES) as i32;
        let params = And::new((), PlantedParams { value, query, key, reserved: 0 });
        run(&card, false, |request| request.variant(planted, params))
    };
    let plain = with(0.0, KEYS as i32)?;
    for (value, key) in
        [(f32::NAN, 0), (f32::NAN, 199), (f32::INFINITY, 77), (f32::NEG_INFINITY, 0), (f32::NEG_INFINITY, 1)]
    {
        let made = with(value, key)?;
        for (query, head) in (0..QUERIES).flat_map(|query| (0..HEADS).map(move |head| (query, head))) {
            let (row, lse) = (made.row(query, head), made.lse[head * QUERIES + query]);
            match (query == QUERY, value == f32::NEG_INFINITY, key) {
                // A warp raises the maxima of all its rows together, so other rows may round differently.
                (false, ..) => {
                    let off = worst(row, plain.row(query, head));
                    let lse_off = (lse - plain.lse[head * QUERIES + query]).abs();
                    assert!(off <= 1e-3 && lse_off <= 1e-4, "{value} from {key} on: row {query}: {off}");
                }
                (true, false, _) => assert!(row.iter().all(|x| x.is_nan()), "{value} from {key}: {row:?}"),
                // No key is left, so the row is like a row that sees no key.
                (true, true, 0) => {
                    assert!(row.iter().all(|x| *x == 0.0) && lse == f32::NEG_INFINITY, "{lse}: {row:?}");
                }
                // One key is left, so the row is the value of this key.
                (true, true, _) => assert!(row.iter().all(|x| x.abs() <= 1.0) && lse.is_finite(), "{row:?}"),
            }
        }
    }
    Ok(())
}
