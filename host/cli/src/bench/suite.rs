//! Shapes to measure: the built-in suites, or a file of one's own.
use crate::error::Error;
use ferroflash::{DType, Mask, Problem};
use reference::{Layout, Memory, Random};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

const BUILT_IN: &str = include_str!("suites.json");

/// Suites by name.
pub(crate) type Suites = BTreeMap<String, Vec<Shape>>;

/// One shape of a suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    batch: usize,
    heads_q: usize,
    heads_k: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    head_dim: usize,
    #[serde(default)]
    causal: bool,
    /// Keys before and behind a query's position, -1 for unbounded.
    window: Option<[i64; 2]>,
    /// f16 or bf16 [default: f16].
    dtype: Option<String>,
    /// Q, K and V side by side in one buffer.
    #[serde(default)]
    packed: bool,
    /// For people.
    #[serde(rename = "name")]
    _name: Option<String>,
}

/// Reads suites from `file`, or takes the built-in ones; keeps those in `only`, where that names any.
pub(crate) fn read(file: Option<&Path>, only: &[String]) -> Result<Suites, Error> {
    let (text, name) = match file {
        None => (BUILT_IN.to_owned(), "the built-in suites".to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            (
                std::fs::read_to_string(path)
                    .map_err(|e| Error::Invalid(format!("`{name}` cannot be read: {e}")))?,
                name,
            )
        }
    };
    let mut suites: Suites = serde_json::from_str(&text).map_err(|e| {
        let sizes =
            r#""batch": 1, "heads_q": 8, "heads_k": 8, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 64"#;
        let like = format!("{{\"mine\": [{{{sizes}}}]}}");
        Error::Invalid(format!("{name}: {e}; it must be like {like}"))
    })?;
    if let Some(unknown) = only.iter().find(|name| !suites.contains_key(*name)) {
        let known: Vec<_> = suites.keys().map(String::as_str).collect();
        return Err(Error::Invalid(format!(
            "{name}: no suite is called `{unknown}`, only {}",
            known.join(", ")
        )));
    }
    suites.retain(|name, shapes| !shapes.is_empty() && (only.is_empty() || only.contains(name)));
    if suites.is_empty() {
        return Err(Error::Invalid(format!("{name}: there is no shape to measure")));
    }
    Ok(suites)
}

impl Shape {
    /// The problem.
    pub(crate) fn problem(&self) -> Result<Problem, Error> {
        let dtype = match &self.dtype {
            None => DType::F16,
            Some(name) => {
                crate::options::dtype(name).map_err(|e| Error::Invalid(format!("dtype {name}: {e}")))?
            }
        };
        let side = |keys: i64| match keys {
            -1 => Ok(None),
            _ => u32::try_from(keys)
                .map(Some)
                .map_err(|_| Error::Invalid(format!("window {keys}: it must be -1 (unbounded), 0 or more"))),
        };
        let mask = match (self.causal, self.window) {
            (true, Some(_)) => {
                return Err(Error::Invalid("causal and window: one of them alone; causal is [-1, 0]".into()));
            }
            (true, None) => Mask::Causal,
            (false, Some([left, right])) => Mask::Window { left: side(left)?, right: side(right)? },
            (false, None) => Mask::Full,
        };
        let Self { batch, heads_q, heads_k, seqlen_q, seqlen_k, head_dim, .. } = *self;
        Ok(Problem::new(dtype, batch, seqlen_q, heads_q, head_dim)
            .seqlen_k(seqlen_k)
            .heads_k(heads_k)
            .mask(mask))
    }

    /// Inputs: normal numbers of a long period, since making as many as the largest shapes have takes longer
    /// than measuring them.
    pub(crate) fn memory(&self, problem: Problem) -> Memory {
        const PERIOD: usize = 1_000_003;
        let layout = if self.packed { Layout::Packed } else { Layout::Bhsd };
        let numbers = Random::new(1).normals(problem.dtype, PERIOD);
        Memory::filled(problem, layout, |len| numbers.iter().copied().cycle().take(len).collect())
    }
}

/// Floating-point operations: 4 for each query, key that it sees, and column. A causal square counts as half
/// of the full one, as everybody counts it.
pub(super) fn flops(p: &Problem) -> f64 {
    let (rows, keys) = (p.seqlen_q as i64, p.seqlen_k as i64);
    let window = |left: Option<u32>, right: Option<u32>| -> i64 {
        let seen = |row: i64| {
            let position = row + keys - rows;
            let first = left.map_or(0, |left| (position - i64::from(left)).max(0));
            let last = right.map_or(keys, |right| (position + i64::from(right) + 1).min(keys));
            (last - first).max(0)
        };
        (0..rows).map(seen).sum()
    };
    let pairs = match p.mask.sides() {
        (None, None) => (rows * keys) as f64,
        (None, Some(0)) if rows == keys => (rows * keys) as f64 / 2.0,
        (left, right) => window(left, right) as f64,
    };
    4.0 * (p.batch * p.heads_q * p.head_dim) as f64 * pairs
}

/// Bytes that must cross the memory bus at least: Q, K, V and O once.
pub(super) fn least_bytes(p: &Problem) -> f64 {
    let rows = p.heads_q * p.seqlen_q + p.heads_k * p.seqlen_k;
    (2 * p.dtype.bytes() * p.batch * rows * p.head_dim) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_suites_are_problems_that_an_h200_solves() {
        let suites = read(None, &[]).expect("valid");
        let h200 = ferroflash::Capabilities::profile("h200").expect("known");
        for shape in suites.values().flatten() {
            let problem = shape.problem().expect("valid");
            ferroflash::supports(&problem, h200).unwrap_or_else(|e| panic!("{problem}: {e}"));
        }
        assert_eq!(
            suites.keys().map(String::as_str).collect::<Vec<_>>(),
            ["extra", "headline", "hopper", "hopper-extra", "prefill"]
        );
    }

    #[test]
    fn work_is_counted_by_visible_keys() {
        let full = Problem::new(DType::F16, 2, 8, 3, 16);
        let base = (4 * 2 * 3 * 16) as f64;
        let with = |mask| flops(&full.mask(mask)) / base;
        assert_eq!(with(Mask::Full), 64.0);
        assert_eq!(with(Mask::Causal), 32.0);
        // Rows see 1, 2, 3, 3, 3, 3, 3 and 3 keys.
        assert_eq!(with(Mask::Window { left: Some(2), right: Some(0) }), 21.0);
        let short = full.seqlen_q(2).mask(Mask::Causal);
        assert_eq!(flops(&short) / base, 7.0 + 8.0);
        assert_eq!(least_bytes(&full), (4 * 2 * 2 * 3 * 8 * 16) as f64);
    }

    #[test]
    fn files_that_are_not_suites() {
        let error = |only: &str| read(None, &[only.to_owned()]).expect_err("unknown").to_string();
        assert!(error("decode").contains("only extra, headline, hopper, hopper-extra, prefill"));
        let missing = read(Some(Path::new("no-such-file.json")), &[]).expect_err("missing").to_string();
        assert!(missing.contains("cannot be read"), "{missing}");
        let shape: Shape = serde_json::from_str(
            r#"{"batch": 1, "heads_q": 1, "heads_k": 1, "seqlen_q": 1, "seqlen_k": 1, "head_dim": 64,
                "window": [-2, 0]}"#,
        )
        .expect("parses");
        assert!(shape.problem().expect_err("no window").to_string().contains("window -2"));
    }
}
