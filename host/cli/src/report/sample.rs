//! The kernels of every family that a report verifies.
use ferroflash::Capabilities;
use reference::{Random, Subject, subjects, unfit};

/// Maximum number of kernels per family on a GPU.
const EACH: usize = 8;

/// Draws random kernels of each family that the card runs. In the simulator, draws one kernel per family,
/// from the kernels with the least work.
pub(super) fn draw(card: &Capabilities, simulated: bool, seed: u64) -> Vec<&'static str> {
    let fits = |subject: &&'static dyn Subject| unfit(*subject, card).is_none();
    let all: Vec<_> = subjects().filter(fits).collect();
    let mut families: Vec<_> = all.iter().map(|subject| subject.family()).collect();
    families.dedup();
    let mut random = Random::new(seed);
    let mut drawn: Vec<&'static str> = vec![];
    for (at, family) in families.iter().enumerate() {
        if families[..at].contains(family) {
            continue;
        }
        let mut own: Vec<_> = all.iter().filter(|subject| subject.family() == *family).collect();
        if simulated {
            own.sort_by_key(|subject| subject.contract().smem_bytes);
            own.truncate(1);
        }
        random.shuffle(&mut own);
        drawn.extend(own.iter().take(EACH).map(|subject| subject.contract().symbol));
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_family_that_a_card_runs_is_drawn() {
        for (name, card) in Capabilities::PROFILES {
            let family = |symbol: &str| {
                let subject = subjects().find(|subject| subject.contract().symbol == symbol);
                subject.expect("a kernel of the table").family()
            };
            let there: BTreeSet<_> =
                subjects().filter(|s| unfit(*s, card).is_none()).map(|s| s.family()).collect();
            for simulated in [false, true] {
                let drawn = draw(card, simulated, 1);
                let families: BTreeSet<_> = drawn.iter().map(|symbol| family(symbol)).collect();
                assert_eq!(families, there, "{name}");
                let names: BTreeSet<_> = drawn.iter().collect();
                assert_eq!(names.len(), drawn.len(), "{name}: {drawn:?}");
            }
        }
        let l4 = Capabilities::profile("l4").expect("known");
        assert_ne!(draw(l4, false, 1), draw(l4, false, 2));
    }
}
