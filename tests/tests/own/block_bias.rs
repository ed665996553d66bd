//! Biases of whole blocks (`ScoreMod::block_bias`): kernels give the results of the scores one by one, need
//! fewer instructions, and verification finds a bias that is wrong for a part of its blocks.
use super::*;
use ferroflash::spec::SinkParams;
use own_kernels::block_bias::*;
use own_kernels::exact::MaskFn;
use ptx_sim::Options;
use reference::variant::{Buffers, Case, Failure, Report, verify};

/// Distances of a head with a table that no launch of a verification reaches.
const FAR: u32 = 4090;
/// Distances of a head.
const DISTANCES: u32 = 24;

fn bias(heads: usize) -> impl Iterator<Item = f32> {
    (0..heads as u32 * DISTANCES).map(|i| (i as f32 * 0.7).sin())
}

fn params(buffers: &mut Buffers<'_, SimDriver>, case: &Case) -> Result<DistanceParams, Error> {
    let bias = buffers.floats(bias(case.heads[0]))?;
    Ok(DistanceParams { bias, distances: DISTANCES, reserved: 0 })
}

fn run_on<M: MaskFn>(
    variant: &'static Variant<M>,
    params: impl Fn(&mut Buffers<'_, SimDriver>, &Case) -> Result<M::Params, Error>,
) -> Result<Report, Failure> {
    verify(&card(), variant, params)
}

#[test]
fn a_bias_of_blocks_gives_the_results_of_each_score() -> Result<(), Failure> {
    let one = |buffers: &mut Buffers<'_, _>, case: &Case| Ok(And::new((), params(buffers, case)?));
    println!("{}", run_on(variant::<distance::Kernel>("distance"), one)?);
    println!("{}", run_on(variant::<distance_blocks::Kernel>("distance_blocks"), one)?);
    // The functions are right, and the kernel is wrong.
    let wrong = verified::renamed("distance_blocks_wrong", "distance_blocks");
    let wrong = run_on(variant_of::<distance_blocks::Kernel>("distance_blocks", wrong), one);
    assert!(matches!(wrong, Err(Failure::Wrong { .. })), "{wrong:?}");
    // The functions are wrong, farther away than any launch reaches.
    let far = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let bias = buffers.floats((0..case.heads[0] as u32 * FAR).map(|i| (i % FAR == FAR - 1).into()))?;
        Ok(And::new((), DistanceParams { bias, distances: FAR, reserved: 0 }))
    };
    let wrong = run_on(variant::<distance_blocks_wrong::Kernel>("distance_blocks_wrong"), far);
    let words = wrong.map(|_| ()).expect_err("a wrong bias").to_string();
    assert!(words.contains("`block_bias` gives") && words.contains("must be `None` unless"), "{words}");

    let twice = |buffers: &mut Buffers<'_, _>, case: &Case| {
        let sinks = buffers.floats((0..case.heads[0]).map(|head| head as f32))?;
        let params = params(buffers, case)?;
        Ok(And::new(And::new((), params), And::new(SinkParams { base: sinks.base }, params)))
    };
    println!("{}", run_on(variant::<distance_twice::Kernel>("distance_twice"), twice)?);
    Ok(())
}

#[test]
fn a_bias_of_blocks_costs_nothing_per_score() -> Result<(), Error> {
    let options = Options { coverage: true, ..Options::default() };
    let card = Attention::new(SimDriver::with_options("l4", options)?);
    let table: Vec<_> = bias(HEADS).flat_map(f32::to_le_bytes).collect();
    let (_table, base) = upload(&card, &table);
    let bias = Integers { base, count: HEADS as u32 * DISTANCES, reserved: 0 };
    let params = And::new((), DistanceParams { bias, distances: DISTANCES, reserved: 0 });
    let each = variant::<distance::Kernel>("distance");
    let blocks = variant::<distance_blocks::Kernel>("distance_blocks");
    let right = run(&card, false, |request| request.variant(each, params))?;
    let made = run(&card, false, |request| request.variant(blocks, params))?;
    assert!(worst(&made.o, &right.o) <= 2e-3, "{}", worst(&made.o, &right.o));
    let coverage = card.driver().take_coverage();
    let [each, blocks] = ["distance", "distance_blocks"].map(|symbol| coverage[symbol].1);
    println!("warp instructions: {each} for each score, {blocks} with a bias of blocks");
    assert!(blocks * 100 < each * 95, "{blocks} of {each}");
    Ok(())
}
