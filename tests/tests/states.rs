//! Attention that leaves a state in f32, and its merge, in the simulator.
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::Problem;
use ferroflash::request::{AttentionRequest, LseView, Mask, Merge, State, TensorView};
use ferroflash::{Attention, DType, Error};
use ferroflash_tests::is_carried;
use reference::{HostTensor, Inputs, Random, Reference};

/// Queries and keys: several tiles, of which the last ones are partial. With a causal mask, the second
/// problem has queries without keys.
const ROWS: [[usize; 2]; 2] = [[203, 300], [300, 165]];
const BATCH: usize = 2;
const HEADS: [usize; 2] = [4, 2];
/// Bytes behind an output, which no launch writes.
const GUARD: usize = 256;

/// Allocates bytes, with a guard behind them.
fn upload(driver: &SimDriver, bytes: Vec<u8>) -> Result<SimBuffer, Error> {
    let mut buffer = driver.allocate(bytes.len() + GUARD)?;
    driver.upload_at(&mut buffer, 0, &bytes)?;
    driver.upload_at(&mut buffer, bytes.len(), &[0x5a; GUARD])?;
    Ok(buffer)
}

fn download(driver: &SimDriver, buffer: &SimBuffer, bytes: usize) -> Result<Vec<u8>, Error> {
    let mut all = vec![0; bytes + GUARD];
    driver.download_at(buffer, 0, &mut all)?;
    assert!(all[bytes..].iter().all(|byte| *byte == 0x5a), "a launch has written behind its output");
    all.truncate(bytes);
    Ok(all)
}

/// A state, and the kernel that leaves it.
#[derive(Debug)]
struct Case {
    card: &'static str,
    dtype: DType,
    mask: Mask,
    /// 0 is off.
    softcap: f32,
    head_dim: usize,
    symbol: &'static str,
}

/// Computes a state, merges it alone, and judges the merge. Returns the number of elements of the state that
/// are no elements of `dtype`.
fn check(case: &Case, own: [usize; 2]) -> Result<usize, Error> {
    let Case { card, dtype, mask, softcap, head_dim, .. } = *case;
    let attention = Attention::new(SimDriver::new(card)?);
    let driver = attention.driver();
    let mut random = Random::new(7);
    let shape = |rows: usize, heads: usize| [BATCH, own[rows], heads, head_dim];
    let shapes = [shape(0, HEADS[0]), shape(1, HEADS[1]), shape(1, HEADS[1])];
    let bits = shapes.map(|shape| random.normals(dtype, shape.iter().product()));
    let mut memory = Vec::new();
    let mut view = |index: usize| {
        let buffer = upload(driver, bits[index].iter().flat_map(|bits| bits.to_le_bytes()).collect())?;
        let view = TensorView::bshd(driver.address(&buffer), bits[index].len() as u64, dtype, shapes[index]);
        memory.push(buffer);
        Ok::<_, Error>(view)
    };
    let (q, k, v) = (view(0)?, view(1)?, view(2)?);
    let count = bits[0].len();
    let values = count / head_dim;
    let of_rows = [BATCH, HEADS[0], own[0]];
    let nan = |count: usize| upload(driver, [f32::NAN.to_le_bytes()].repeat(count).concat());
    let (of_state, of_lse, result, of_result) = (nan(count)?, nan(values)?, nan(count / 2)?, nan(values)?);
    let address = |buffer: &SimBuffer| driver.address(buffer);
    let lse = |buffer: &SimBuffer| LseView::contiguous(address(buffer), values as u64, of_rows);
    let o = TensorView::bhsd(address(&of_state), count as u64, DType::F32, shapes[0]);
    let state = State::new(o, lse(&of_lse));
    let request = AttentionRequest::dense(q, k, v, state.o).mask(mask).softcap(softcap).lse(state.lse);
    let o = TensorView::bshd(address(&result), count as u64, dtype, shapes[0]);
    let states = [state];
    let merge = Merge::new(&states, o).lse(lse(&of_result));
    // SAFETY: the simulator checks every access.
    unsafe {
        attention.launch(&attention.plan(&request)?, &request, &SimStream)?;
        attention.launch(&attention.plan(&merge)?, &merge, &SimStream)?;
    }
    driver.synchronize(&SimStream)?;
    let floats =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<_>>();
    let o = download(driver, &result, count * 2)?;
    let o: Vec<u16> = o.as_chunks().0.iter().map(|x| u16::from_le_bytes(*x)).collect();
    let found = floats(&download(driver, &of_result, values * 4)?);
    let host = |index: usize, bits| HostTensor::bshd(bits, dtype, shapes[index]).expect("a tensor");
    let [heads_q, heads_k] = HEADS;
    let problem = Problem::new(dtype, BATCH, own[0], heads_q, head_dim).seqlen_k(own[1]).heads_k(heads_k);
    let inputs = [0, 1, 2].map(|index| host(index, &bits[index][..]));
    let inputs =
        Inputs::new(problem.mask(mask).softcap(softcap), inputs[0], inputs[1], inputs[2]).expect("inputs");
    let verdict = Reference::new(&inputs).judge(&host(0, &o), Some(&found)).expect("of one shape");
    let failures: Vec<_> = verdict.failures().collect();
    assert!(failures.is_empty(), "{case:?}: {failures:?}");
    let state = floats(&download(driver, &of_state, count * 4)?);
    download(driver, &of_lse, values * 4)?;
    // f16 has 10 bits of a mantissa, and bf16 has 7.
    Ok(state.iter().filter(|x| x.to_bits() & 0x1fff != 0).count())
}

/// A state has the precision of f32, and a merge rounds it once.
#[test]
fn a_state_in_f32_is_rounded_by_its_merge_alone() -> Result<(), Error> {
    let of =
        |card, dtype, mask, softcap, head_dim, symbol| Case { card, dtype, mask, softcap, head_dim, symbol };
    let window = Mask::Window { left: Some(70), right: Some(3) };
    let (f16, bf16) = (DType::F16, DType::Bf16);
    let cases = [
        of("l4", f16, Mask::Full, 0.0, 64, "fwd_f16_d64_full_128x64_split"),
        of("a100", f16, Mask::Causal, 0.0, 128, "fwd_f16_d128_causal_128x64_split"),
        of("l4", bf16, window, 0.0, 64, "fwd_bf16_d64_local_128x64_split"),
        of("l4", f16, Mask::Causal, 2.0, 128, "fwd_f16_d128_local_128x32_split"),
        of("h200", f16, Mask::Causal, 0.0, 64, "hopper_f16_d64_causal_128x128_split"),
        of("h200", bf16, Mask::Full, 0.0, 128, "hopper_bf16_d128_full_128x128_split"),
        of("h200", f16, Mask::Full, 2.0, 64, "hopper_f16_d64_local_128x128_split"),
        of("h200", bf16, window, 2.0, 128, "hopper_bf16_d128_local_128x96_split"),
    ];
    let mut computed = 0;
    for case in cases {
        let merge = if case.dtype == f16 { "merge_f32_f16" } else { "merge_f32_bf16" };
        if !is_carried(case.symbol) || !is_carried(merge) {
            continue;
        }
        for own in ROWS {
            let finer = check(&case, own)?;
            // A causal mask and the window leave queries without keys where there are more queries than keys.
            let seeing = if case.mask == Mask::Full { own[0] } else { own[0].min(own[1]) };
            let count = BATCH * seeing * HEADS[0] * case.head_dim;
            assert!(
                finer > count / 2,
                "{case:?}: {finer} of {count} elements need more bits than its dtype has"
            );
        }
        computed += 1;
    }
    // The sample of the kernels has none of them.
    assert!(computed > 0 || !reference::carries_all(), "a build has one of these kernels");
    Ok(())
}
