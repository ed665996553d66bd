//! Tests the launches of shared prefixes: their kernels, and the states that these exchange.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, MANY, Shape, decode};
use ferroflash::{plan::ScratchBytes, request::*, *};
use spec::{DecodeParams, States};

/// 128 sequences of one query, and room for 256 pages each.
const BATCH: Shape = MANY;

const REST: Index = Index::new(9 * FAR, 128);

/// Returns the request with prefixes of 128 pages.
fn request(shape: Shape, prefixes: SharedPrefixes) -> AttentionRequest<'static> {
    decode(shape).mask(Mask::Causal).scratch(Scratch::Fastest).shared_prefixes(prefixes)
}

const HOPPER: &str = "hopper_paged_f16_d128_causal_128x128";
const DECODE: &str = "decode_f16_d128_causal_8_tiles_w4";
const WIDE: &str = "decode_f16_d128_causal_16_tiles_w4";

/// The prefix pass, and decode of the rest with the states of the prefix, with one workspace and one set of
/// counters. A launch with other tensors runs the same kernels. Hopper's tiles take a prefix in 4 parts.
#[test]
fn kernels_of_a_launch() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let combine = "decode_combine_f16_d128";
    let one = SharedPrefixes::one(128, REST);
    let few = SharedPrefixes::equal(8, 128, REST);
    let cases: [(_, u32, &[&str], &[&str]); 2] = [
        (one, 4, &[HOPPER, DECODE], &[HOPPER, DECODE, combine]),
        (few, 1, &[WIDE, DECODE], &[WIDE, combine, DECODE, combine]),
    ];
    for (prefixes, parts, with_counters, without) in cases {
        let d = request(BATCH, prefixes);
        let plan = attention.plan(&d)?;
        let ScratchBytes { workspace, counters } = plan.scratch_bytes();
        let workspace = Region { address: 20 * FAR, bytes: workspace };
        let own = Region { address: 21 * FAR, bytes: counters.max(4) };
        attention.load(&plan)?;
        for (counters, kernels) in [(Some(own), with_counters), (None, without)] {
            let scratch = Scratch::Memory { workspace, counters };
            let mut other = d.scratch(scratch);
            other.o.address += FAR / 2;
            for lse in [None, Some(LseView::contiguous(22 * FAR, 128 * 32, [128, 32, 1]))] {
                other.lse = lse;
                // SAFETY: the fake driver runs nothing.
                unsafe { attention.launch(&plan, &other, &7) }?;
                let launches = attention.driver().launches();
                let launches = &launches[launches.len() - kernels.len()..];
                let symbols = launches.iter().map(|launch| &*launch.symbol);
                assert_eq!(symbols.collect::<Vec<_>>(), kernels);
                let mut states = launches.iter().filter(|launch| launch.symbol != HOPPER).map(|launch| {
                    assert_eq!(launch.params.len(), size_of::<DecodeParams>());
                    // SAFETY: the launch has the size of the parameters, and every byte has a value.
                    unsafe { launch.params.as_ptr().cast::<DecodeParams>().read_unaligned() }.states
                });
                let (o, rows) = (20 * FAR, 128 * 32);
                let first = states.next_back().expect("the rest or its combine kernel");
                assert_eq!((first.count, first.first.o.base, first.o_bytes), (parts, o, rows * 256));
                let lse = o + u64::from(parts) * rows * 256;
                assert_eq!((first.first.lse.base, first.lse_bytes), (lse, rows * 4));
                let of_rest = if counters.is_some() { 0 } else { 1 };
                assert!(
                    states
                        .rev()
                        .enumerate()
                        .all(|(i, s)| s == if i < of_rest { first } else { States::NONE })
                );
            }
        }
        let short = Region { bytes: workspace.bytes - 1, ..workspace };
        let short = attention.plan(&d.scratch(Scratch::Memory { workspace: short, counters: None }))?;
        assert!(short.reason().contains("need a workspace"), "{}", short.reason());
    }
    Ok(())
}
