//! Mixed batches on KV caches, in the simulator: sequences of few and of many queries in one launch.
use ferroflash::request::Mask;
use ferroflash_tests::on_cache::{attention, check_on};
use reference::{DecodeCase, DecodeMemory, LoadedDecode, Pages};

fn case(queries: &[usize], keys: &[usize], pages: Pages) -> DecodeCase {
    DecodeCase { pages, mask: Mask::Causal, heads: [8, 2], ..DecodeCase::new(keys) }.packed(queries)
}

/// With four query heads per key head, decode takes up to four queries. No sequence, all of decode's, all of
/// prefill's, and both sides of the threshold.
#[test]
fn mixtures() {
    let mixtures: [(&[usize], &[usize]); 4] = [
        (&[1, 0, 4, 5, 150, 1], &[300, 7, 64, 40, 170, 0]),
        (&[1, 1, 1, 4, 9], &[300, 17, 700, 4, 9]),
        (&[40, 129, 5], &[40, 200, 33]),
        (&[0, 0, 3, 6], &[5, 0, 90, 90]),
    ];
    for (queries, keys) in mixtures {
        for pages in [Pages::Nhd(16), Pages::Hnd(24), Pages::Dense] {
            let case = case(queries, keys, pages);
            let (attention, memory) = (attention(), DecodeMemory::new(&case));
            let mut loaded = LoadedDecode::new(&attention, &memory, None).expect("a plan");
            let lengths: Vec<i32> = keys.iter().map(|n| *n as i32).collect();
            let (plan, _) = loaded.run(None, &lengths).expect("a launch");
            let symbol = plan.contract().symbol;
            assert!(symbol.starts_with("mixed_few_"), "{symbol} is not decode's part of a mixed batch");
            check_on(&attention, &case, None);
        }
    }
}
