//! Detection of the first pages that the sequences of a step share.
use crate::gpu::pages::Sequence;

/// Groups of equal numbers of consecutive sequences. The sequences of a group share their first pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    pub count: usize,
    /// Number of shared pages, equal for all groups.
    pub pages: usize,
}

/// Returns the groups whose launch reads the fewest keys, or `None` if no groups share pages. `sequences`
/// have these numbers of new tokens, on pages of `page` keys. A block table has `columns` columns.
pub(crate) fn groups(sequences: &[(&Sequence, usize)], page: usize, columns: usize) -> Option<Groups> {
    let all = sequences.len();
    let is_even = sequences.windows(2).all(|pair| pair[0].1 == pair[1].1);
    // All new tokens lie behind the shared pages, so that every query sees these pages.
    let most = sequences.iter().map(|(sequence, _)| sequence.keys() / page).min()?;
    let most = most.min(columns.saturating_sub(1));
    if !is_even || most == 0 {
        return None;
    }
    let common = |pair: &[(&Sequence, usize)]| {
        let pages = pair[0].0.pages().iter().zip(pair[1].0.pages()).take(most);
        pages.take_while(|(a, b)| a == b).count()
    };
    let common: Vec<usize> = sequences.windows(2).map(common).collect();
    let shared = |count: usize| {
        let each = all / count;
        let within = common.iter().enumerate().filter(|(i, _)| !(i + 1).is_multiple_of(each));
        within.map(|(_, pages)| *pages).min().unwrap_or(0)
    };
    let counts = (1..all).rev().filter(|count| all.is_multiple_of(*count));
    let groups = counts.map(|count| Groups { count, pages: shared(count) });
    groups.filter(|groups| groups.pages > 0).max_by_key(|groups| (all - groups.count) * groups.pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PagePool;
    use candle::Result;

    /// Returns a sequence of `keys` keys, which begins with the first `shared` keys of another sequence.
    fn after(pool: &mut PagePool, of: &Sequence, shared: usize, keys: usize) -> Result<Sequence> {
        let mut sequence = pool.share(of, shared);
        let more = keys - sequence.keys();
        pool.grow(&mut sequence, more + 1)?;
        sequence.advance(more);
        Ok(sequence)
    }

    #[test]
    fn groups_that_save_the_most_keys() -> Result<()> {
        let mut pool = PagePool::new(100, 16);
        let roots =
            [after(&mut pool, &Sequence::new(), 0, 100)?, after(&mut pool, &Sequence::new(), 0, 100)?];
        let other = Sequence::new();
        let mut sequence = |of: &Sequence, shared| after(&mut pool, of, shared, 100);
        let a: Vec<_> = (0..4).map(|_| sequence(&roots[0], 70)).collect::<Result<_>>()?;
        let b: Vec<_> = (0..4).map(|_| sequence(&roots[1], 40)).collect::<Result<_>>()?;
        let lone = sequence(&other, 0)?;
        let check = |sequences: &[&Sequence], tokens: usize, columns, expected: Option<[usize; 2]>| {
            let all: Vec<_> = sequences.iter().map(|sequence| (*sequence, tokens)).collect();
            let expected = expected.map(|[count, pages]| Groups { count, pages });
            assert_eq!(groups(&all, 16, columns), expected, "{sequences:?}");
        };
        let [a, b] = [&a, &b].map(|all| all.iter().collect::<Vec<_>>());
        check(&a, 1, 10, Some([1, 4]));
        check(&a, 3, 10, Some([1, 4]));
        check(&[&a[..], &b[..]].concat(), 1, 10, Some([2, 2]));
        // A column of the block table remains for each sequence's own pages.
        check(&a, 1, 3, Some([1, 2]));
        check(&a, 1, 1, None);
        // A lone sequence, or groups of unequal numbers.
        check(&a[..1], 1, 10, None);
        check(&[&a[..], &[&lone]].concat(), 1, 10, None);
        check(&[&a[..2], &[&lone, b[0]]].concat(), 1, 10, None);
        assert_eq!(groups(&[], 16, 10), None);
        assert_eq!(groups(&[(a[0], 1), (a[1], 2)], 16, 10), None);
        Ok(())
    }
}
