//! Which kernels stand for all: `cargo xtask test` compiles and tests these, `cargo xtask test --all` every
//! kernel of the table.
//!
//! A kernel's symbol says what it is: family, types, head dim, mask, and what tells its tiling or its order
//! of work from others'. [`sample`] takes kernels of the one table until every such word of every family has
//! appeared. *That each order of work, mask, type and head dim is among them by what the table says, too, is
//! held by `tests/tests/sample.rs`.*
use spec::Contract;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Words of a symbol that say which family a kernel is of.
const FAMILIES: [&str; 10] =
    ["fwd", "hopper", "decode", "mla", "append", "merge", "combine", "packed", "paged", "split"];

/// The type and the head dim whose kernels all belong to the sample, but for the lineage's: what the planner
/// chooses among tilings runs there.
const WHOLE: [&str; 2] = ["f16", "d64"];

/// The kernels that stand for all, in the table's order.
pub fn sample() -> Vec<Contract> {
    let all: Vec<_> =
        spec::kernels().map(|kernel| (kernel, traits(kernel.symbol).collect::<BTreeSet<_>>())).collect();
    let is_whole = |kernel: &Contract| {
        let has = |word| kernel.symbol.split('_').any(|own| own == word);
        WHOLE.into_iter().all(has) && !spec::is_lineage(kernel.symbol)
    };
    let mut taken: Vec<bool> = all.iter().map(|(kernel, _)| is_whole(kernel)).collect();
    loop {
        let seen: BTreeSet<_> =
            all.iter().zip(&taken).filter(|(_, taken)| **taken).flat_map(|((_, own), _)| own).collect();
        let adds = |n: usize| all[n].1.iter().filter(|it| !seen.contains(it)).count();
        // Of those that add as much the table's first, which is of the simplest mask.
        match (0..all.len()).max_by_key(|&n| (adds(n), Reverse(n))) {
            Some(best) if adds(best) > 0 => taken[best] = true,
            _ => break,
        }
    }
    all.into_iter().zip(taken).filter_map(|((kernel, _), taken)| taken.then_some(kernel)).collect()
}

/// A family, and a word of one of its kernels, or none.
type Trait<'s> = (Vec<&'s str>, Option<&'s str>);

/// What a symbol says: its family, and of it each word but its tile; of the lineage what follows a full
/// mask, too: a configuration's (but for CUDA cores, whose kernels are ten times as long).
fn traits(symbol: &str) -> impl Iterator<Item = Trait<'_>> {
    let lineage = spec::is_lineage(symbol).then_some("lineage");
    let family: Vec<_> = symbol.split('_').filter(|word| FAMILIES.contains(word)).chain(lineage).collect();
    let is_tile = |word: &str| word.split_once('x').is_some_and(|(m, n)| is_number(m) && is_number(n));
    let is_own = move |word: &&str| !FAMILIES.contains(word) && !is_tile(word);
    let configuration = lineage.and_then(|_| symbol.splitn(5, '_').nth(4));
    let configuration = configuration.filter(|name| !name.ends_with("scalar") && symbol.contains("_full_"));
    let own = symbol.split('_').filter(is_own).chain(configuration).map(Some);
    own.chain([None]).map(move |word| (family.clone(), word))
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_every_family_appears() {
        let sample = sample();
        let seen: BTreeSet<_> = sample.iter().flat_map(|kernel| traits(kernel.symbol)).collect();
        for kernel in spec::kernels() {
            let unseen: Vec<_> = traits(kernel.symbol).filter(|it| !seen.contains(it)).collect();
            assert!(unseen.is_empty(), "{}: {unseen:?}", kernel.symbol);
        }
        assert!(sample.len() * 3 < spec::KERNELS.len(), "{} kernels are no sample", sample.len());
    }

    #[test]
    fn a_tile_is_no_trait() {
        let of = |symbol| traits(symbol).collect::<Vec<_>>();
        let family = vec!["fwd", "packed"];
        let words = [Some("bf16"), Some("d64"), Some("full"), Some("k2"), None];
        assert_eq!(of("fwd_bf16_d64_full_64x128_k2_packed"), words.map(|word| (family.clone(), word)));
    }
}
