//! Verifies every kernel of each variant in the simulator, or on the GPU with `cargo test --features gpu`
//! (`reference::verify_against`). The kernel must
//! agree with its functions, and the functions must agree with a second definition in f64. The definition
//! shares no code with the functions.
use ferroflash::configuration::{And, FastDiv, SinkParams};
#[cfg(feature = "gpu")]
use ferroflash::driver::RawDriver as Driver;
#[cfg(not(feature = "gpu"))]
use ferroflash::driver::SimDriver as Driver;
use ferroflash::variant::Variant;
use ferroflash::{Attention, Error};
use reference::variant::{Buffers, Case, Failure, verify_against};
use your_own_attention::exact::{MaskFn, Sequence};
use your_own_attention::*;

#[cfg(feature = "gpu")]
fn driver() -> Driver {
    Driver::primary(0).expect("a GPU with NVIDIA's driver")
}

#[cfg(not(feature = "gpu"))]
fn driver() -> Driver {
    Driver::new("l4").expect("a known card")
}

/// The score of a query's position and a key in a sequence and head, made of the scaled product. Minus
/// infinity hides a key.
type Definition<'a> = &'a dyn Fn(&Sequence, f64, i32, i32) -> f64;

/// The variant is right by its definition. Verification reports each definition with an error in it.
fn check<M: MaskFn>(
    variant: &'static Variant<M>,
    params: impl Fn(&mut Buffers<'_, Driver>, &Case) -> Result<M::Params, Error>,
    definition: Definition<'_>,
    wrong: &[Definition<'_>],
) -> Result<(), Failure> {
    let card = Attention::new(driver());
    println!("{}", verify_against(&card, variant, &params, definition)?);
    for wrong in wrong {
        let report = verify_against(&card, variant, &params, wrong);
        assert!(matches!(report, Err(Failure::Definition { .. })), "{report:?}");
    }
    Ok(())
}

/// Returns the score if the query sees the key.
fn seen(sees: bool, s: f64) -> f64 {
    if sees { s } else { f64::NEG_INFINITY }
}

#[test]
fn streaming() -> Result<(), Failure> {
    let stream =
        |first, window| move |_: &Sequence, s, p, k| seen(k <= p && (k < first || p - k < window), s);
    let params = |_: &mut Buffers<'_, _>, _: &Case| Ok(StreamingParams { first: 3, window: 20 });
    check(&STREAMING, params, &stream(3, 20), &[&stream(4, 20), &stream(3, 21)])
}

#[test]
fn documents() -> Result<(), Failure> {
    const ENDS: [i32; 4] = [10, 60, 75, 140];
    let of = |p: i32| ENDS.iter().filter(|end| **end <= p).count();
    let same = |by: i32| move |_: &Sequence, s, p, k| seen(k <= p && of(p + by) == of(k + by), s);
    let params = |buffers: &mut Buffers<'_, _>, case: &Case| {
        buffers.words((0..case.max_keys()).map(|p| of(p as i32) as u32))
    };
    check(&DOCUMENTS, params, &same(0), &[&same(1)])
}

#[test]
fn prefix_lm() -> Result<(), Failure> {
    // If there are more sequences than prefixes, the other sequences have the length of the last prefix.
    const PREFIXES: [u32; 3] = [5, 0, 70];
    let prefix = |sequence: u32| PREFIXES[(sequence as usize).min(2)] as i32;
    let behind = |by: u32| move |of: &Sequence, s, p, k| seen(k <= p || k < prefix(of.index + by), s);
    let longer = |of: &Sequence, s, p, k| seen(k <= p || k <= prefix(of.index), s);
    let params = |buffers: &mut Buffers<'_, _>, _: &Case| buffers.words(PREFIXES);
    check(&PREFIX_LM, params, &behind(0), &[&behind(1), &longer])
}

#[test]
fn chunks() -> Result<(), Failure> {
    let of = |chunk: i32| {
        // The definition goes from chunk to chunk, so that positions before key 0 are in no chunk.
        move |_: &Sequence, s, p: i32, k: i32| seen(k <= p && (k..p).all(|i| (i + 1) % chunk != 0), s)
    };
    let params = |_: &mut Buffers<'_, _>, _: &Case| {
        Ok(ChunksParams { chunk: FastDiv::new(24).expect("a divisor below 2^31"), reserved: 0 })
    };
    check(&CHUNKS, params, &of(24), &[&of(25), &of(23)])
}

#[test]
fn neighbours() -> Result<(), Failure> {
    const WIDTH: i32 = 13;
    let near = |radius: i32, width: i32| {
        move |_: &Sequence, s, p: i32, k: i32| {
            let close = |a: i32, b: i32| (a - b).abs() <= radius;
            seen(p >= 0 && close(p / width, k / width) && close(p % width, k % width), s)
        }
    };
    let params = |_: &mut Buffers<'_, _>, _: &Case| {
        let width = FastDiv::new(WIDTH as u32).expect("a divisor below 2^31");
        Ok(NeighboursParams { width, pixels: WIDTH, radius: 2, reserved: 0 })
    };
    check(&NEIGHBOURS, params, &near(2, WIDTH), &[&near(1, WIDTH), &near(2, WIDTH + 1)])
}

#[test]
fn tree() -> Result<(), Failure> {
    // Node 0 is the root; each node has up to three children.
    let parent = |node: i32| if node > 0 { Some((node - 1) / 3) } else { None };
    let path = move |node: i32| std::iter::successors(Some(node), move |node| parent(*node));
    let own = move |of: &Sequence, s, p: i32, k: i32| {
        seen(k < of.shift || path(p - of.shift).any(|node| node == k - of.shift), s)
    };
    let without_itself = move |of: &Sequence, s, p: i32, k: i32| {
        seen(k < of.shift || path(p - of.shift).skip(1).any(|node| node == k - of.shift), s)
    };
    let params = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let words = case.max_queries().div_ceil(32) as i32;
        let is_of = move |word: i32, node: i32| node / 32 == word;
        let bits = move |node: i32, word: i32| {
            path(node).filter(|node| is_of(word, *node)).fold(0u32, |bits, node| bits | 1 << (node % 32))
        };
        let nodes = 0..case.max_queries() as i32;
        let table = nodes.flat_map(|node| (0..words).map(move |word| bits(node, word)));
        Ok(TreeParams { ancestors: buffers.words(table)?, words, reserved: 0 })
    };
    check(&TREE, params, &own, &[&without_itself])
}

#[test]
fn t5() -> Result<(), Failure> {
    const DISTANCES: i32 = 100;
    let bias = |head: u32, distance: i32| ((head as i32 * DISTANCES + distance) as f32 * 0.7).sin();
    let by = |head: u32, last: i32| {
        move |of: &Sequence, s, p: i32, k: i32| {
            seen(k <= p, s + f64::from(bias(of.head ^ head, (p - k).clamp(0, last))))
        }
    };
    let params = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let heads = 0..case.heads[0] as u32;
        let table = heads.flat_map(|head| (0..DISTANCES).map(move |distance| bias(head, distance)));
        let bias = buffers.floats(table)?;
        Ok(And::new((), T5Params { bias, distances: DISTANCES as u32, reserved: 0 }))
    };
    // The errors: another head's bias, and a maximum distance that is one too small.
    check(&T5_BIAS, params, &by(0, DISTANCES - 1), &[&by(1, DISTANCES - 1), &by(0, DISTANCES - 2)])
}

#[test]
fn alibi() -> Result<(), Failure> {
    let slope = |head: u32| 2f64.powi(-1 - head as i32);
    let by = |head: u32, from: i32| {
        move |of: &Sequence, s, p: i32, k: i32| {
            seen(k <= p, s - slope(of.head ^ head) * f64::from((p - k + from).abs()))
        }
    };
    let params = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let slopes = buffers.floats((0..case.heads[0] as u32).map(|head| slope(head) as f32))?;
        Ok(And::new((), slopes))
    };
    check(&ALIBI, params, &by(0, 0), &[&by(1, 0), &by(0, 1)])
}

#[test]
fn capped_window() -> Result<(), Failure> {
    let capped = |window: i32, cap: f64| {
        move |_: &Sequence, s: f64, p: i32, k: i32| seen(k <= p && p - k < window, cap * (s / cap).tanh())
    };
    let params = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let sinks = buffers.floats((0..case.heads[0]).map(|head| head as f32 - 1.0))?;
        Ok(And::new(30, And::new([2.0, 0.0], SinkParams { base: sinks.base })))
    };
    // A sink is no score of a pair, so the definition does not contain it. Only the comparison of kernel and
    // functions covers the sink.
    check(&CAPPED_WINDOW, params, &capped(30, 2.0), &[&capped(31, 2.0), &capped(30, 2.1)])
}
