//! Tests that each sequence of a mixed batch belongs to one of its two kernels.
use super::{NUMBER_TILES, attention, case, lengths, pairs};
use ferroflash::{Error, ptx};
use ptx_sim::mutate::{Mutant, Operator, mutants};
use reference::{Case, Loaded, Pages};

/// For the decode kernel and for the kernel that numbers tiles, the line that decides whether a sequence has
/// few queries or many.
const DECIDES: [&str; 2] = ["(1..=most).contains(&self.rows)", "(self.rows > few)"];

/// Whether a mutant stands in the line that contains `code`, in file `file` of the folder kernels-gpu/src.
fn is_at(mutant: &Mutant, file: &str, code: &str) -> bool {
    let path = format!("kernels-gpu/src/{file}");
    let source = std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR")));
    let at = source.expect("in this repository").lines().position(|line| line.contains(code));
    let at = at.expect("that line") as u32 + 1;
    mutant.source.iter().any(|line| line.file.ends_with(&path) && line.line == at)
}

/// Tests that neither the decode kernel nor the prefill kernel processes the other's sequences. If a
/// comparison is off by one, the decode kernel takes too many or too few sequences, or too many or too few
/// sequences of the prefill kernel have tiles: rows are then written twice, or not at all.
#[test]
fn a_kernel_that_takes_others_sequences_is_noticed() {
    let [portable, _, _, hopper, _] = pairs();
    let few = portable.few;
    let case = |queries: &[usize], keys: &[usize], pages| case(&portable, queries, keys, pages);
    let most = |n: usize| case(&[4, 0, 4, 5, 20, 1], &[300, 7, 0, 40, n, 9], Pages::Nhd(16));
    let many: Vec<_> = (0..40).map(|b| 4 + b % 2).collect();
    let many = |keys: usize| case(&many, &(0..40).map(|b| b % 3 * keys).collect::<Vec<_>>(), Pages::Dense);
    // From 256 keys on, the device computes the number of splits.
    let split = Case { max_k: 256, ..many(9) };
    let cases = [most(20), many(9), split];
    let memories = cases.each_ref().map(Case::memory);
    let all = cases.each_ref().map(lengths);
    let [decode, prefill] = DECIDES;
    let kernels = [
        (portable, few.contract, decode),
        (portable, NUMBER_TILES, prefill),
        (hopper, NUMBER_TILES, prefill),
    ];
    for (pair, kernel, decides) in kernels {
        let symbol = kernel.symbol;
        let text = ptx::source(symbol).expect("this build carries it");
        let mutants = mutants(&text, symbol).expect("the simulator reads it");
        let run = |text: &str| {
            let results = memories.iter().zip(&all).map(|(memory, lengths)| {
                let attention = attention(&pair);
                // SAFETY: the simulator checks every access.
                unsafe { attention.load_from(symbol, text) }.expect("it changes one comparison");
                let loaded = Loaded::new(&attention, memory, Some(few.contract.symbol));
                let (_, outcome) = loaded?.launch(None, lengths)?;
                Ok::<_, Error>(outcome)
            });
            results.collect::<Result<Vec<_>, _>>()
        };
        // Rows that both kernels write must have the bits of the prefill kernel, which differ from the bits
        // of decode.
        let right = run(&text).expect("unbroken");
        let survives = |text: &str| run(text).is_ok_and(|results| results == right);
        // All blocks cut the keys at other places if they count fewer tiles. Numbers have a gap if a warp
        // counts too many tiles before its own. These mutants do not change which kernel takes a sequence.
        let is_meant = |mutant: &&Mutant| {
            mutant.operator == Operator::OffByOne
                && is_at(mutant, "lengths.rs", decides)
                && !is_at(mutant, "decode/schedule.rs", "tiles += Sequence::of")
                && !is_at(mutant, "number_tiles.rs", "before += tiles(")
        };
        let meant: Vec<_> = mutants.iter().filter(is_meant).collect();
        let survivors: Vec<_> = meant.iter().filter(|mutant| survives(&mutant.apply(&text))).collect();
        assert!(!meant.is_empty() && survivors.is_empty(), "{symbol}: {survivors:#?} of {}", meant.len());
    }
}
