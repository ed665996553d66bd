//! Random worlds: ranks, lengths, chunks, heads, masks, dtypes and cards.
use crate::world::{Case, all, judge};
use context_parallel::{Chunks, Form};
use ferroflash::request::Mask;
use ferroflash::{DType, Error};
use reference::Random;

fn one_of<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[(random.bits() % all.len() as u64) as usize]
}

/// Cuts the positions anywhere, and gives each part to any rank.
fn anywhere(random: &mut Random, positions: usize, ranks: usize) -> Result<Chunks, Error> {
    let mut of: Vec<Vec<std::ops::Range<usize>>> = vec![Vec::new(); ranks];
    let mut start = 0;
    while start < positions {
        let end = positions.min(start + one_of(random, &[1, 2, 13, 30, 64]));
        let rank = one_of(random, &[0, 1, 2, 3, 4, 5]) % ranks;
        match of[rank].last_mut().filter(|last| last.end == start) {
            Some(last) => last.end = end,
            None => of[rank].push(start..end),
        }
        start = end;
    }
    Chunks::new(of)
}

fn world(seed: u64) -> Case {
    let random = &mut Random::new(seed);
    let ranks = one_of(random, &[1, 2, 2, 3, 3, 4, 5, 6]);
    let sequences = one_of(random, &[1, 1, 2, 3]);
    let mut lengths: Vec<usize> =
        (0..sequences).map(|_| one_of(random, &[0, 1, 2, 5, 17, 33, 64, 65, 90])).collect();
    // Some tests have no position at all.
    lengths[0] = lengths[0].max(one_of(random, &[0, 3]));
    let (card, head_dim) = one_of(random, &[("a100", 64), ("a100", 64), ("l4", 64), ("h200", 128)]);
    let heads = one_of(random, &[[1, 1], [2, 2], [4, 2], [3, 1], [4, 1], [6, 3], [6, 2], [6, 6]]);
    let window = Mask::Window { left: Some(one_of(random, &[0, 1, 7, 20])), right: Some(0) };
    let both = Mask::Window { left: Some(one_of(random, &[0, 9])), right: Some(one_of(random, &[1, 12])) };
    let right = Mask::Window { left: None, right: Some(one_of(random, &[2, 40])) };
    let mask = one_of(random, &[Mask::Full, Mask::Causal, Mask::Causal, window, both, right]);
    let case = Case::new("");
    let kind = one_of(random, &["zigzag", "zigzag", "contiguous", "anywhere"]);
    let mut case = match kind {
        "zigzag" => case.packed(&lengths, ranks),
        _ => case.contiguous(&lengths, ranks),
    };
    if kind == "anywhere" {
        let chunks = anywhere(random, lengths.iter().sum(), ranks).and_then(|all| all.sequences(&lengths));
        case.chunks = chunks.expect("chunks");
    }
    let (dtype, has_d_lse) = (one_of(random, &[DType::F16, DType::Bf16]), one_of(random, &[false, true]));
    let (batch, softcap) = (one_of(random, &[1, 1, 2]), one_of(random, &[0.0, 0.0, 0.0, 15.0]));
    let name = format!("world {seed}, {kind}, {ranks} ranks, {lengths:?}, {heads:?}, mask {mask}, {card}");
    Case { name, card, batch, heads, head_dim, dtype, mask, softcap, has_d_lse, ..case }
}

/// Every form computes every world, or all ranks refuse it, and a repeated call gives identical bits.
#[test]
fn random_worlds_are_computed_twice_with_identical_bits() {
    let (mut computed, mut refused) = ([0; 3], 0);
    for seed in 0..24 {
        let case = world(seed);
        for (form, computed) in Form::ALL.into_iter().zip(&mut computed) {
            let name = format!("{}, {form:?}, {:?}", case.name, case.chunks);
            let results = match all(&case, form) {
                Ok(results) => results,
                Err(Error::Unsupported { feature, .. }) if feature.contains("an all-to-all of") => {
                    let [heads, heads_k] = case.heads;
                    let ranks = case.chunks.ranks();
                    let fits = heads_k.is_multiple_of(ranks) || ranks.is_multiple_of(heads_k);
                    assert!(
                        form == Form::Ulysses && !(fits && heads.is_multiple_of(ranks)),
                        "{name}: {feature}"
                    );
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            judge(&case, form, &results);
            let again = all(&case, form).unwrap_or_else(|error| panic!("{name}, again: {error}"));
            let bits = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(
                results.tensors == again.tensors && bits(&results.lse) == bits(&again.lse),
                "{name}: a repeated call gives other bits"
            );
            *computed += 1;
        }
    }
    println!("{computed:?} worlds of each form, twice; {refused} exchanges of heads refused");
    assert!(computed.iter().all(|computed| *computed >= 6) && refused > 0, "{computed:?}, {refused}");
}
