//! Tests batch invariance in the simulator: drawn sequences have equal bits alone and in drawn batches, as
//! equal and as varlen queries, and, if the request asks for it, in any chunks of their queries.
use ferroflash::driver::SimDriver;
use ferroflash::request::{Invariance, Mask, Splits};
use ferroflash::{Attention, Error};
use ferroflash_tests::batches::{Keys, Part, Shape, attention, launch};
use ferroflash_tests::is_thorough;
use reference::{Random, lacks_kernel};

/// The shapes of drawn batches. The first shapes take turns with all masks.
fn shape(round: usize, invariance: Invariance, random: &mut Random) -> Shape {
    let mut below = |most: usize| (random.bits() % most as u64) as usize;
    let card = ["l4", "h200"][round % 2];
    let keys = match round / 2 % 4 {
        0 => Keys::Tensors,
        3 if round % 16 > 13 => Keys::Latent,
        1 => Keys::Pages(16),
        _ => Keys::Pages(8 * (1 + below(3))),
    };
    let chunks = invariance == Invariance::BatchAndChunks;
    let (heads, columns) = match keys {
        Keys::Latent => ([16, 1], [576, 512]),
        _ => ([[4, 2], [4, 1], [2, 2], [14, 2]][below(4)], [[64; 2], [64; 2], [40; 2]][below(3)]),
    };
    let mask = match below(4) {
        1 if keys != Keys::Latent => Mask::Window { left: Some(40 + below(90) as u32), right: Some(0) },
        2 if !chunks => Mask::Full,
        _ => Mask::Causal,
    };
    let splits = match keys {
        Keys::Latent => Splits::Keys(128),
        Keys::Pages(_) if !chunks => [Splits::Auto, Splits::Keys(128)][below(2)],
        _ => Splits::Auto,
    };
    let sinks = below(5) == 0 && keys != Keys::Latent;
    let [counters, max_logits] = [2, 3].map(|most| below(most) == 0);
    Shape { card, keys, heads, columns, mask, sinks, splits, counters, max_logits, invariance }
}

/// A causal shape of head dim 64 without extras.
fn plain(card: &'static str, keys: Keys) -> Shape {
    Shape {
        card,
        keys,
        heads: [4, 2],
        columns: [64; 2],
        mask: Mask::Causal,
        sinks: false,
        splits: Splits::Auto,
        counters: true,
        max_logits: false,
        invariance: Invariance::Batch,
    }
}

/// Draws a part of a sequence.
fn part(random: &mut Random, shape: &Shape, seed: u64) -> Part {
    let mut below = |most: usize| (random.bits() % most as u64) as usize;
    let queries = match below(4) {
        0 | 1 => 1 + below(3),
        2 => 1 + below(20),
        _ if shape.keys == Keys::Latent => 1 + below(4),
        _ => 20 + below(150),
    };
    let first = below(if shape.keys == Keys::Latent { 200 } else { 330 });
    Part { seed, queries: first..first + queries, keys: first + queries }
}

/// Runs the check of each round on drawn shapes. Returns the number of rounds whose kernels this build
/// carries.
fn drawn(
    rounds: usize,
    invariance: Invariance,
    check: impl Fn(usize, &Attention<SimDriver>, &Shape) -> Result<(), Error>,
) {
    let mut random = Random::new(21);
    let (mut ran, mut left_out) = (0, 0);
    for round in 0..rounds {
        let shape = shape(round, invariance, &mut random);
        match check(round, &attention(shape.card), &shape) {
            Ok(()) => ran += 1,
            Err(error) if lacks_kernel(&error) => left_out += 1,
            Err(error) => panic!("round {round}, {shape:?}: {error}"),
        }
    }
    assert!(ran > rounds / 2 && (left_out == 0 || !is_thorough()), "{ran} of {rounds}, {left_out} left out");
}

/// A drawn sequence has the bits of a launch of its own in each batch.
#[test]
fn sequences_have_equal_bits_in_all_batches() {
    let rounds = if is_thorough() { 200 } else { 24 };
    drawn(rounds, Invariance::Batch, |round, attention, shape| {
        let mut random = Random::new(100 + round as u64);
        let own = part(&mut random, shape, 1);
        let (alone, kernel) = launch(attention, shape, std::slice::from_ref(&own), false)?;
        // Neighbours of equal lengths.
        let equal = |seed| Part { seed, ..own.clone() };
        let (among, _) = launch(attention, shape, &[equal(7), own.clone(), equal(8)], false)?;
        assert_eq!(among[1], alone[0], "round {round}, {shape:?}, {own:?}, {kernel}: equal neighbours");
        if shape.keys == Keys::Latent {
            return Ok(());
        }
        let batch = 1 + (random.bits() % 6) as usize;
        let place = (random.bits() % batch as u64) as usize;
        let mut all: Vec<_> = (0..batch).map(|b| part(&mut random, shape, 50 + b as u64)).collect();
        all[place] = own.clone();
        let (among, other) = launch(attention, shape, &all, true)?;
        assert_eq!(among[place], alone[0], "round {round}, {shape:?}, {kernel}, {other}, {place} of {all:?}");
        Ok(())
    });
}

/// A drawn sequence has the bits of one request, however its queries are divided among requests.
#[test]
fn sequences_have_equal_bits_in_all_chunks() {
    let rounds = if is_thorough() { 200 } else { 20 };
    drawn(rounds, Invariance::BatchAndChunks, |round, attention, shape| {
        let mut random = Random::new(300 + round as u64);
        let own = part(&mut random, shape, 1);
        let (whole, kernel) = launch(attention, shape, std::slice::from_ref(&own), false)?;
        let mut first = own.queries.start;
        while first < own.queries.end {
            let left = (own.queries.end - first) as u64;
            let end = first + 1 + (random.bits() % left) as usize;
            let chunk = Part { queries: first..end, keys: end, ..own.clone() };
            let varlen = random.bits().is_multiple_of(2) && shape.keys != Keys::Latent;
            let mut all = vec![chunk];
            if varlen {
                all.insert(0, part(&mut random, shape, 60));
            }
            let (rows, other) = launch(attention, shape, &all, varlen)?;
            let expected = &whole[0][first - own.queries.start..end - own.queries.start];
            let rows = rows.last().map_or(&[][..], |rows| rows);
            assert_eq!(
                rows, expected,
                "round {round}, {shape:?}, {kernel}, {other}, {first}..{end} of {own:?}"
            );
            first = end;
        }
        Ok(())
    });
}

/// Tests the sequence of a report: one query of 14 heads on 1500 keys, beside sequences of other numbers of
/// queries (vLLM#51902).
#[test]
fn a_single_query_beside_prompts() -> Result<(), Error> {
    let shape = Shape { heads: [14, 2], ..plain("h200", Keys::Pages(16)) };
    let attention = attention(shape.card);
    let part = |seed, queries: usize, keys: usize| Part { seed, queries: keys - queries..keys, keys };
    let own = part(1, 1, 1500);
    let (alone, _) = launch(&attention, &shape, std::slice::from_ref(&own), false)?;
    for beside in [1, 9, 10, 129] {
        let all = [own.clone(), part(2, beside, beside.max(120))];
        assert_eq!(launch(&attention, &shape, &all, true)?.0[0], alone[0], "beside {beside} queries");
    }
    Ok(())
}

/// A sequence of one page has equal bits beside sequences of several pages, also if a box of Hopper's TMA
/// kernels does not fit the pages.
#[test]
fn a_sequence_of_one_page_beside_longer_ones() -> Result<(), Error> {
    let shape = plain("h200", Keys::Pages(100));
    let attention = attention(shape.card);
    let own = Part { seed: 1, queries: 0..70, keys: 70 };
    let (alone, _) = launch(&attention, &shape, std::slice::from_ref(&own), false)?;
    let all = [own, Part { seed: 2, queries: 120..190, keys: 190 }];
    assert_eq!(launch(&attention, &shape, &all, false)?.0[0], alone[0]);
    Ok(())
}

/// Tests the form of padded queries that docs/limits.md describes: the rows behind a sequence's queries are a
/// sequence without keys.
#[test]
fn padding_rows_are_sequences_without_keys() -> Result<(), Error> {
    for (card, keys) in [("l4", Keys::Tensors), ("l4", Keys::Pages(16)), ("h200", Keys::Pages(16))] {
        let shape = plain(card, keys);
        let attention = attention(card);
        let sequences = [(1, 0..7, 40), (2, 0..1, 90), (3, 0..30, 30)].map(|(seed, queries, keys)| Part {
            seed,
            queries,
            keys,
        });
        let padded = |own: &Part, rows| [own.clone(), Part { seed: 9, queries: 0..rows, keys: 0 }];
        let all: Vec<_> =
            sequences.iter().zip([25, 31, 2]).flat_map(|(own, rows)| padded(own, rows)).collect();
        let (padded, _) = launch(&attention, &shape, &all, true)?;
        for (own, both) in sequences.iter().zip(padded.chunks(2)) {
            let (alone, _) = launch(&attention, &shape, std::slice::from_ref(own), false)?;
            assert_eq!(both[0], alone[0], "{card}, {keys:?}, {own:?}");
            let is_empty = |(o, lse): &(Vec<u16>, Vec<u32>)| {
                o.iter().all(|bits| *bits == 0) && lse.iter().all(|bits| *bits == f32::NEG_INFINITY.to_bits())
            };
            assert!(both[1].iter().all(is_empty), "{card}, {keys:?}: padding behind {own:?}");
        }
    }
    Ok(())
}
