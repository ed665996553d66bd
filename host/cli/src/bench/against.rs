//! Compares a report with an older report.
use super::job::Row;
use super::statistics::slowdown;
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The fields of an older report that the comparison reads.
#[derive(Deserialize)]
pub(super) struct Before {
    device: String,
    rows: Vec<Row>,
}

/// The comparison of a report with an older one.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Rows in both reports.
    pub compared: usize,
    /// Rows that are slower by more than the noise.
    pub regressions: Vec<Regression>,
}

/// A row that became slower.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Regression {
    shape: String,
    timing: String,
    before_us: f64,
    now_us: f64,
    /// The slowdown, relative to the older time.
    slower: f64,
    /// The largest slowdown that noise alone can cause.
    noise: f64,
}

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Regression { shape, timing, before_us, now_us, slower, noise } = self;
        write!(f, "{shape}, {timing}: {now_us:.1} us, was {before_us:.1}: ")?;
        write!(f, "{:.1} % slower, noise is {:.1} %", slower * 100.0, noise * 100.0)
    }
}

/// Reads an older report: the output of `ferroflash bench --json`.
pub(super) fn read(path: &Path) -> Result<Before, Error> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|e| Error::Invalid(format!("`{name}` cannot be read: {e}")))?;
    let wrong =
        |e| Error::Invalid(format!("`{name}`: {e}; it must be the output of `ferroflash bench --json`"));
    serde_json::from_str(&text).map_err(wrong)
}

/// Compares rows with equal suite, shape and timing.
pub(super) fn compare(before: &Before, device: &str, now: &[Row]) -> Result<Comparison, Error> {
    if before.device != device {
        let what = format!("the older report is of a {}, this is a {device}", before.device);
        return Err(Error::Invalid(format!("{what}; compare reports of the same kind of device")));
    }
    let key = |row: &Row| (row.suite.clone(), row.shape.clone(), row.timing.clone());
    let pairs: Vec<_> = now
        .iter()
        .filter_map(|row| before.rows.iter().find(|b| key(b) == key(row)).map(|b| (b, row)))
        .collect();
    if pairs.is_empty() {
        return Err(Error::Invalid("the older report has none of these shapes with this timing".into()));
    }
    let regressions = pairs.iter().filter_map(|(before, now)| {
        let (slower, noise) = slowdown(&before.times, &now.times);
        // A NaN counts as slower.
        (slower > noise || slower.is_nan()).then(|| Regression {
            shape: now.shape.clone(),
            timing: now.timing.clone(),
            before_us: before.times.p50_us,
            now_us: now.times.p50_us,
            slower,
            noise,
        })
    });
    Ok(Comparison { compared: pairs.len(), regressions: regressions.collect() })
}

#[cfg(test)]
mod tests {
    use super::super::statistics::Times;
    use super::*;

    fn row(shape: &str, p50_us: f64) -> Row {
        let times = Times { p50_us, p90_us: p50_us, min_us: p50_us, noise: 0.0, samples: 3 };
        let [suite, shape, entry, timing] = ["s", shape, "e", "hot"].map(str::to_owned);
        Row { suite, shape, entry, timing, times, tflops: 1.0, gb_per_s: 1.0, sm_mhz: None }
    }

    #[test]
    fn only_what_both_have_is_compared() {
        let before =
            Before { device: "A".into(), rows: vec![row("a", 10.0), row("b", 10.0), row("c", 10.0)] };
        let now = [row("a", 10.1), row("b", 11.0), row("new", 99.0)];
        let comparison = compare(&before, "A", &now).expect("comparable");
        assert_eq!(comparison.compared, 2);
        assert_eq!(comparison.regressions.len(), 1);
        let words = comparison.regressions[0].to_string();
        assert_eq!(words, "b, hot: 11.0 us, was 10.0: 10.0 % slower, noise is 2.0 %");
        assert!(compare(&before, "B", &now).expect_err("another device").to_string().contains("this is a B"));
        assert!(compare(&before, "A", &[row("new", 1.0)]).is_err());
        assert_eq!(compare(&before, "A", &[row("a", f64::NAN)]).expect("comparable").regressions.len(), 1);
    }
}
