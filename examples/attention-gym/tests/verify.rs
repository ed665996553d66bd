//! Verifies every kernel in the simulator, with a second definition of each variant in f64. The definitions
//! share no code with the functions, and verification reports each definition with an error in it.
use attention_gym::exact::{MaskFn, Sequence};
use attention_gym::*;
use ferroflash::configuration::{And, FastDiv};
use ferroflash::driver::SimDriver;
use ferroflash::variant::Variant;
use ferroflash::{Attention, Error};
use reference::variant::{Buffers, Case, Failure, verify_against};

type Memory<'a> = Buffers<'a, SimDriver>;

/// The variant is right by its definition `of(true)`. Verification reports the definition with an error,
/// `of(false)`. A definition says whether a query sees a key.
fn check<M: MaskFn, D: Fn(&Sequence, i32, i32) -> bool>(
    variant: &'static Variant<M>,
    params: impl Fn(&mut Memory<'_>, &Case) -> Result<M::Params, Error>,
    of: impl Fn(bool) -> D,
) -> Result<(), Failure> {
    let card = Attention::new(SimDriver::new("l4").expect("a known card"));
    let [right, wrong] = [of(true), of(false)].map(|sees| {
        move |of: &Sequence, s: f64, p: i32, k: i32| if sees(of, p, k) { s } else { f64::NEG_INFINITY }
    });
    println!("{}", verify_against(&card, variant, &params, right)?);
    let report = verify_against(&card, variant, &params, wrong);
    assert!(matches!(report, Err(Failure::Definition { .. })), "{report:?}");
    Ok(())
}

fn divisor(of: u32) -> FastDiv {
    FastDiv::new(of).expect("a divisor below 2^31")
}

#[test]
fn drafts() -> Result<(), Failure> {
    let params = |_: &mut Memory<'_>, _: &Case| Ok(DraftsParams { block: divisor(7), reserved: 0 });
    check(&DRAFTS, params, |right| {
        let block = if right { 7 } else { 6 };
        // The definition goes from the key to the query, and meets no first token of a block.
        move |of: &Sequence, p, k| {
            k <= p && (k < of.shift || (k + 1..=p).all(|i| (i - of.shift) % block != 0))
        }
    })
}

#[test]
fn dilated() -> Result<(), Failure> {
    let params = |_: &mut Memory<'_>, _: &Case| Ok(DilatedParams { step: divisor(3), window: 20 });
    check(&DILATED, params, |right| {
        let reach: Vec<i32> = (0..if right { 7 } else { 8 }).flat_map(|i| [3 * i, -3 * i]).collect();
        move |_: &Sequence, p, k| reach.contains(&(p - k))
    })
}

#[test]
fn global_window() -> Result<(), Failure> {
    const GLOBAL: [i32; 3] = [0, 17, 90];
    let params = |buffers: &mut Memory<'_>, case: &Case| {
        // The last number counts for positions outside of the table.
        let is_global = (0..case.max_keys() as i32).map(|p| GLOBAL.contains(&p).into()).chain([0]);
        Ok(GlobalWindowParams { is_global: buffers.words(is_global)?, window: 9, reserved: 0 })
    };
    check(&GLOBAL_WINDOW, params, |right| {
        let window = if right { -9..=9 } else { -9..=8 };
        move |_: &Sequence, p, k| window.contains(&(p - k)) || GLOBAL.iter().any(|at| [p, k].contains(at))
    })
}

#[test]
fn video_tiles() -> Result<(), Failure> {
    // Tiles of 6 pixels: 2 in time, in 5 rows and 4 columns of tiles, and a text.
    const PIXELS: i32 = 240;
    let params = |_: &mut Memory<'_>, _: &Case| {
        let ([tile, columns, rows], all) = ([6, 4, 5].map(divisor), PIXELS + 11);
        let kernel = [1, 3, 2];
        Ok(VideoTilesParams { tile, columns, rows, frames: 2, kernel, pixels: PIXELS, all, reserved: 0 })
    };
    check(&VIDEO_TILES, params, |right| {
        let columns = if right { 4 } else { 5 };
        // For each of the query's tiles on an axis, the tiles that the query sees.
        let [rows, column] = [[0..3, 0..3, 1..4, 2..5, 2..5], [0..2, 0..2, 1..3, 2..4, 3..5]];
        move |_: &Sequence, p: i32, k| {
            let at = |pixel: i32| pixel / 6;
            let (query, key) = (at(p.clamp(0, PIXELS - 1)), at(k));
            let near = query / 20 == key / 20
                && rows[(query % 20 / columns) as usize].contains(&(key % 20 / columns))
                && column[(query % 20 % columns) as usize].contains(&(key % 20 % columns));
            k < PIXELS + 11 && (p >= PIXELS || k >= PIXELS || near)
        }
    })
}

#[test]
fn spatial() -> Result<(), Failure> {
    let params =
        |_: &mut Memory<'_>, _: &Case| Ok(SpatialParams { prompt: 5, first: 5 + 14, width: 28, reserved: 0 });
    check(&SPATIAL, params, |right| {
        let window = if right { 27 } else { 28 };
        move |_: &Sequence, p, k| p < 5 || k < 19 || (p - window..=p + window).contains(&k)
    })
}

#[test]
fn temporal() -> Result<(), Failure> {
    let params = |_: &mut Memory<'_>, _: &Case| {
        Ok(TemporalParams { frame: divisor(14), prompt: 5, width: 3, reserved: 0 })
    };
    check(&TEMPORAL, params, |right| {
        let frame = if right { 14 } else { 13 };
        move |_: &Sequence, p: i32, k: i32| {
            let place = |at: i32| (at - 5).rem_euclid(frame);
            p < 5 || k < 5 || (place(p) - place(k)).abs() <= 2
        }
    })
}

#[test]
fn diffusion() -> Result<(), Failure> {
    const HALF: i32 = 50;
    let params = |_: &mut Memory<'_>, _: &Case| Ok(DiffusionParams { block: divisor(8), half: HALF });
    check(&DIFFUSION, params, |right| {
        move |_: &Sequence, p: i32, k: i32| {
            let p = p.max(0);
            match (p < HALF, k < HALF) {
                (true, true) => p / 8 == k / 8,
                (true, false) => (k - HALF) / 8 < p / 8,
                (false, true) => false,
                (false, false) => (k - HALF) / 8 <= (p - HALF) / 8 - i32::from(!right),
            }
        }
    })
}

#[test]
fn shared_prefix() -> Result<(), Failure> {
    /// The first position of each document, and the document that it continues.
    const DOCUMENTS: [(i32, usize); 6] = [(0, 0), (20, 0), (35, 0), (70, 3), (95, 3), (140, 3)];
    let end = |document: usize| DOCUMENTS.get(document + 1).map_or(i32::MAX, |(first, _)| *first);
    let params = move |buffers: &mut Memory<'_>, case: &Case| {
        let of = |p: i32| DOCUMENTS.iter().filter(|(first, _)| *first <= p).count() as u32 - 1;
        let documents = buffers.words((0..case.max_keys() as i32).map(of))?;
        let spans = DOCUMENTS.iter().flat_map(|(first, of)| [*first, DOCUMENTS[*of].0, end(*of)]);
        Ok(SharedPrefixParams { documents, spans: buffers.words(spans.map(|position| position as u32))? })
    };
    check(&SHARED_PREFIX, params, |right| {
        move |_: &Sequence, p, k| {
            let of = |at: i32| (0..6).find(|document| at < end(*document)).expect("the last has no end");
            let (query, key) = (of(p), of(k));
            k <= p && (key == query || right && key == DOCUMENTS[query].1)
        }
    })
}

#[test]
fn images() -> Result<(), Failure> {
    /// For each image, the queries that see it.
    const TEXTS: [[i32; 2]; 4] = [[0, 30], [30, 31], [10, 90], [0, 0]];
    let params = |buffers: &mut Memory<'_>, _: &Case| {
        let texts = buffers.words(TEXTS.concat().into_iter().map(|query| query as u32))?;
        Ok(ImagesParams { texts, image: divisor(30), reserved: 0 })
    };
    check(&IMAGES, params, |right| {
        move |of: &Sequence, p, k| {
            let query = p - of.shift + i32::from(!right);
            match k / 30 {
                image @ 0..4 => query >= TEXTS[image as usize][0] && query < TEXTS[image as usize][1],
                // Later images repeat the table's last number.
                _ => false,
            }
        }
    })
}

#[test]
fn relu() -> Result<(), Failure> {
    let card = Attention::new(SimDriver::new("l4").expect("a known card"));
    let params = |_: &mut Memory<'_>, _: &Case| Ok(And::new((), [0.5, 0.0]));
    let with = |offset: f64| {
        move |_: &Sequence, s: f64, p: i32, k: i32| match (k <= p, s > 0.0) {
            (false, _) => f64::NEG_INFINITY,
            (true, true) => (s + offset).ln(),
            (true, false) => offset.ln(),
        }
    };
    println!("{}", verify_against(&card, &RELU, params, with(0.5))?);
    let report = verify_against(&card, &RELU, params, with(0.51));
    assert!(matches!(report, Err(Failure::Definition { .. })), "{report:?}");
    Ok(())
}
