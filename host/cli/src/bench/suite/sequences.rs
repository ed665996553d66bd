//! The lengths of a shape's sequences.
use crate::error::Error;
use reference::Random;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::value::RawValue;
use std::fmt;

/// Maximum number of sequences per shape.
const MOST: usize = 1 << 20;

/// Sequences: listed, or drawn at random.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Sequences {
    /// `[count, seqlen_q, seqlen_k]`, in the batch's order.
    These(Vec<[usize; 3]>),
    /// Equal query counts, and key counts drawn between two numbers.
    Drawn(Drawn),
}

/// Lengths from a seed.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drawn {
    count: usize,
    /// Queries of each sequence.
    #[serde(default = "one")]
    seqlen_q: usize,
    /// Lowest and highest number of keys.
    seqlen_k: [usize; 2],
    drawn: Distribution,
    seed: u64,
}

fn one() -> usize {
    1
}

/// The distribution of drawn lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Distribution {
    /// Every length is equally likely.
    Uniform,
    /// The logarithms of lengths are uniform.
    LogUniform,
}

impl<'de> Deserialize<'de> for Sequences {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        const LIKE: &str = "it must be like [[count, seqlen_q, seqlen_k], ..], or like {\"count\": 64, \
                            \"seqlen_k\": [64, 8192], \"drawn\": \"uniform\", \"seed\": 1}";
        let text = Box::<RawValue>::deserialize(from)?;
        let parsed = match text.get().starts_with('{') {
            true => serde_json::from_str(text.get()).map(Sequences::Drawn),
            false => serde_json::from_str(text.get()).map(Sequences::These),
        };
        parsed.map_err(|e| D::Error::custom(format_args!("sequences: {}; {LIKE}", super::fields::wrong(e))))
    }
}

impl Sequences {
    /// Returns the queries and keys of each sequence.
    ///
    /// # Errors
    /// Returns an error without sequences, without any work, or with too many sequences.
    pub(super) fn lengths(&self) -> Result<Vec<[usize; 2]>, Error> {
        let wrong = |what: String| Err(Error::Invalid(format!("sequences: {what}")));
        let count = match self {
            Sequences::These(all) => all.iter().try_fold(0usize, |sum, [count, ..]| sum.checked_add(*count)),
            Sequences::Drawn(drawn) => Some(drawn.count),
        };
        if count.is_none_or(|count| count > MOST) {
            return wrong(format!("there are too many sequences; at most {MOST} are measured"));
        }
        let lengths: Vec<_> = match self {
            Sequences::These(all) => {
                all.iter().flat_map(|[count, q, k]| std::iter::repeat_n([*q, *k], *count)).collect()
            }
            Sequences::Drawn(Drawn { seqlen_k: [fewest, most], .. }) if *fewest == 0 || fewest > most => {
                return wrong(format!("seqlen_k [{fewest}, {most}]: fewest and most keys, from 1 on"));
            }
            Sequences::Drawn(drawn) => drawn.lengths(),
        };
        match lengths.iter().any(|[q, k]| q.min(k) > &0) {
            true => Ok(lengths),
            false => wrong("no sequence has both a query and a key".into()),
        }
    }
}

impl Drawn {
    fn lengths(&self) -> Vec<[usize; 2]> {
        let mut random = Random::new(self.seed);
        let [fewest, most] = self.seqlen_k;
        let length = |_| {
            // A random number in [0, 1).
            let x = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
            let keys = match self.drawn {
                Distribution::Uniform => fewest + (x * (most - fewest + 1) as f64) as usize,
                Distribution::LogUniform => {
                    (fewest as f64 * (most as f64 / fewest as f64).powf(x)).round() as usize
                }
            };
            [self.seqlen_q, keys.min(most)]
        };
        (0..self.count).map(length).collect()
    }
}

impl fmt::Display for Sequences {
    /// Prints, for example, `31 x 1/1024 + 1 x 1/32768`, which is count x queries/keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sequences::These(all) => {
                let words: Vec<_> = all.iter().map(|[count, q, k]| format!("{count} x {q}/{k}")).collect();
                f.write_str(&words.join(" + "))
            }
            Sequences::Drawn(Drawn { count, seqlen_q, seqlen_k: [fewest, most], drawn, seed }) => {
                let drawn = match drawn {
                    Distribution::Uniform => "uniform",
                    Distribution::LogUniform => "log-uniform",
                };
                write!(f, "{count} x {seqlen_q}/{fewest}..{most} {drawn} of seed {seed}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(drawn: Distribution, seed: u64) -> Vec<usize> {
        let all = Drawn { count: 1000, seqlen_q: 3, seqlen_k: [64, 4096], drawn, seed };
        let lengths = Sequences::Drawn(all).lengths().expect("valid");
        lengths.into_iter().map(|[q, k]| if q == 3 { k } else { 0 }).collect()
    }

    #[test]
    fn a_seed_stands_for_lengths() {
        use Distribution::{LogUniform, Uniform};
        for (distribution, below) in [(Uniform, 512), (LogUniform, 512)] {
            let all = drawn(distribution, 1);
            assert_eq!(all, drawn(distribution, 1));
            assert_ne!(all, drawn(distribution, 2));
            assert!(all.iter().all(|keys| (64..=4096).contains(keys)));
            // Half of the logarithms are below the middle one, but only a ninth of the uniform numbers.
            let share = all.iter().filter(|keys| **keys < below).count();
            let expected = if distribution == Uniform { 90..140 } else { 450..550 };
            assert!(expected.contains(&share), "{distribution:?}: {share}");
        }
        let same = Drawn { count: 2, seqlen_q: 1, seqlen_k: [7, 7], drawn: Uniform, seed: 1 };
        assert_eq!(Sequences::Drawn(same).lengths().expect("valid"), [[1, 7]; 2]);
    }

    #[test]
    fn words() {
        let these = Sequences::These(vec![[31, 1, 1024], [1, 4, 32768]]);
        assert_eq!(these.to_string(), "31 x 1/1024 + 1 x 4/32768");
        assert_eq!(these.lengths().expect("valid")[30..], [[1, 1024], [4, 32768]]);
        let drawn = Distribution::LogUniform;
        let drawn = Drawn { count: 256, seqlen_q: 1, seqlen_k: [32, 8192], drawn, seed: 9 };
        assert_eq!(Sequences::Drawn(drawn).to_string(), "256 x 1/32..8192 log-uniform of seed 9");
    }
}
