//! The rules of masks. Kernels rely on these rules and cannot check them. The host can check them.
use super::MaskFn;
use crate::rows::Sequence;
use crate::variant::mask::MaskMod;
use core::fmt;
use core::ops::Range;

/// A rule of [`MaskMod`] that a mask breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A bound of [`MaskMod::keys`] decreases from one position to the next.
    Falls {
        /// The position.
        p: i32,
        /// Its keys.
        keys: Range<i32>,
        /// The keys of position `p - 1`.
        before: Range<i32>,
    },
    /// [`MaskMod::LEFT`] is false, and the keys begin behind key 0.
    Left {
        /// The position.
        p: i32,
        /// Its first key.
        start: i32,
    },
    /// [`MaskMod::HOLES`] is false, and the interval has a hole.
    Hole {
        /// The position.
        p: i32,
        /// The key that the query does not see.
        k: i32,
    },
    /// [`MaskMod::whole`] has a hole.
    Whole {
        /// The position.
        p: i32,
        /// The key that the query does not see.
        k: i32,
        /// The keys without holes, as the mask says.
        whole: Range<i32>,
    },
    /// [`MaskMod::SEES_ALL`] is true, and a query does not see a key.
    All {
        /// The position.
        p: i32,
        /// The key that the query does not see.
        k: i32,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Falls { p, keys, before } => write!(
                f,
                "keys({p}) is {keys:?} and keys({}) is {before:?}: neither bound may decrease from one \
                 position to the next; widen the interval, and let `sees` hide the keys between",
                p - 1
            ),
            Broken::Left { p, start } => write!(
                f,
                "keys({p}) begins with key {start}, but `LEFT` is false, so kernels begin with key 0: set \
                 `LEFT` to true"
            ),
            Broken::Hole { p, k } => write!(
                f,
                "sees({p}, {k}) is false, but `HOLES` is false, so kernels do not call `sees`: set `HOLES` \
                 to true"
            ),
            Broken::Whole { p, k, whole } => write!(
                f,
                "sees({p}, {k}) is false, but `whole` is {whole:?}, so kernels do not call `sees` for this \
                 key: `whole` must have only keys that every query sees"
            ),
            Broken::All { p, k } => write!(
                f,
                "position {p} does not see key {k}, but `SEES_ALL` is true, so kernels mask no key: set \
                 `SEES_ALL` to false"
            ),
        }
    }
}

/// The first rule that a mask breaks on a sequence and head; `None` if it keeps all.
pub fn broken<M: MaskFn>(params: &M::Params, of: &Sequence) -> Option<Broken> {
    let mask = M::keys(params, of);
    let (whole, mut before) = (mask.whole(), None::<Range<i32>>);
    for p in of.shift..of.shift + of.queries {
        let keys = mask.keys(p);
        if let Some(before) = before.filter(|before| keys.start < before.start || keys.end < before.end) {
            return Some(Broken::Falls { p, keys, before });
        }
        if !M::LEFT && keys.start > 0 {
            return Some(Broken::Left { p, start: keys.start });
        }
        for k in 0..of.keys {
            let (within, sees) = (keys.contains(&k), mask.sees(p, k));
            if M::SEES_ALL && !(within && sees) {
                return Some(Broken::All { p, k });
            }
            if within && !sees && !M::Keys::HOLES {
                return Some(Broken::Hole { p, k });
            }
            if within && !sees && whole.contains(&k) {
                return Some(Broken::Whole { p, k, whole });
            }
        }
        before = Some(keys);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::sequence;
    use super::*;
    use spec::{Causal, Chunked, ChunkedParams, FastDiv, Full, Local, MaskMarker, Prefix, PrefixParams};
    use std::string::ToString;

    /// A mask for which `SAYS` has the constants `LEFT`, `HOLES` and `SEES_ALL`. Its bounds and its holes are
    /// parameters: start, end, whole, hole.
    #[derive(Clone, Copy)]
    struct Says<const LEFT: bool, const HOLES: bool, const ALL: bool>([i32; 4]);
    impl<const LEFT: bool, const HOLES: bool, const ALL: bool> MaskMarker for Says<LEFT, HOLES, ALL> {
        type Params = [i32; 4];
    }
    impl<const LEFT: bool, const HOLES: bool, const ALL: bool> MaskMod for Says<LEFT, HOLES, ALL> {
        const LEFT: bool = LEFT;
        const HOLES: bool = HOLES;
        const SEES_ALL: bool = ALL;
        fn load(params: &[i32; 4], _: &Sequence) -> Self {
            Says(*params)
        }
        fn keys(&self, p: i32) -> Range<i32> {
            self.0[0]..self.0[1].saturating_add(if self.0[1] < 0 { -p } else { p })
        }
        fn whole(&self) -> Range<i32> {
            0..self.0[2]
        }
        fn sees(&self, _: i32, k: i32) -> bool {
            k != self.0[3]
        }
    }

    #[test]
    fn every_rule_is_checked() {
        fn of<const LEFT: bool, const HOLES: bool, const ALL: bool>(params: [i32; 4]) -> Option<Broken> {
            broken::<Says<LEFT, HOLES, ALL>>(&params, &sequence(0, 0, [4, 10], 1.0))
        }
        assert_eq!(of::<true, true, false>([2, 3, 5, 5]), None);
        assert_eq!(of::<true, true, false>([2, 3, 6, 5]), Some(Broken::Whole { p: 6, k: 5, whole: 0..6 }));
        assert_eq!(of::<true, false, false>([2, 3, 0, 5]), Some(Broken::Hole { p: 6, k: 5 }));
        assert_eq!(of::<false, true, false>([2, 3, 0, 5]), Some(Broken::Left { p: 6, start: 2 }));
        assert_eq!(
            of::<true, true, false>([-9, -1, 0, -1])
                .map(|broken| matches!(broken, Broken::Falls { p: 7, .. })),
            Some(true)
        );
        assert_eq!(of::<false, false, true>([0, 100, 0, -1]), None);
        assert_eq!(of::<false, true, true>([0, 100, 0, 7]), Some(Broken::All { p: 6, k: 7 }));
        let words = of::<true, false, false>([2, 3, 0, 5]).expect("a hole").to_string();
        assert!(words.starts_with("sees(6, 5) is false, but `HOLES` is false"), "{words}");
    }

    #[test]
    fn built_in_masks_keep_the_rules() {
        for lengths in [[1, 1], [7, 20], [20, 7], [0, 5]] {
            let of = sequence(0, 0, lengths, 1.0);
            assert_eq!(broken::<Full>(&(), &of), None);
            assert_eq!(broken::<Causal>(&(), &of), None);
            assert_eq!(broken::<Local>(&(), &of), None);
            let chunk = FastDiv::new(3).expect("a divisor");
            assert_eq!(broken::<Chunked>(&ChunkedParams { chunk, reserved: 0 }, &of), None);
            let lengths = spec::Integers { base: 0, count: 0, reserved: 0 };
            assert_eq!(broken::<Prefix>(&PrefixParams { lengths, all: 4, reserved: 0 }, &of), None);
        }
    }
}
