//! Compares the L4 model's predictions with measurements.
use crate::bench::suite::{self, Suites};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// The predictions: for each suite and each of its shapes in order, the lowest and highest microseconds by
/// kernel.
const TABLE: &str = include_str!("l4.json");
/// The card that the model describes.
const CARD: &str = "NVIDIA L4";

type Predictions = BTreeMap<String, Vec<BTreeMap<String, [f64; 2]>>>;

/// The comparison of predictions with measurements. Each quotient is the measured median divided by the
/// highest prediction.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Held {
    /// Rows with a prediction.
    rows: usize,
    /// Rows without a prediction.
    unknown: usize,
    geomean: f64,
    least: f64,
    most: f64,
    /// The geometric mean of the quotients of each suite.
    suites: BTreeMap<String, f64>,
}

/// Adds predictions to the rows of a `bench` report, and compares them. Returns `None` on cards other than an
/// L4, and without any prediction.
pub(super) fn hold(card: &str, bench: &mut Value) -> Option<Held> {
    if card != CARD {
        return None;
    }
    let predictions: Predictions = serde_json::from_str(TABLE).ok()?;
    let suites = suite::read(None, &[]).ok()?;
    let (mut ratios, mut unknown) = (BTreeMap::<String, Vec<f64>>::new(), 0);
    for row in bench["rows"].as_array_mut()? {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let (suite, shape, entry) = (text("suite"), text("shape"), text("entry"));
        let (Some([least, most]), Some(us)) =
            (predicted(&predictions, &suites, &suite, &shape, &entry), row["p50_us"].as_f64())
        else {
            unknown += 1;
            continue;
        };
        row["predicted_us"] = json!([least, most]);
        ratios.entry(suite).or_default().push(us / most);
    }
    let all: Vec<f64> = ratios.values().flatten().copied().collect();
    let end = |pick: fn(f64, f64) -> f64| all.iter().copied().reduce(pick);
    Some(Held {
        rows: all.len(),
        unknown,
        geomean: geomean(&all),
        least: end(f64::min)?,
        most: end(f64::max)?,
        suites: ratios.into_iter().map(|(suite, own)| (suite, geomean(&own))).collect(),
    })
}

fn predicted(
    predictions: &Predictions,
    suites: &Suites<suite::Workload>,
    suite: &str,
    shape: &str,
    entry: &str,
) -> Option<[f64; 2]> {
    let place = suites.get(suite)?.iter().position(|workload| workload.label == shape)?;
    predictions.get(suite)?.get(place)?.get(entry).copied()
}

fn geomean(all: &[f64]) -> f64 {
    (all.iter().map(|x| x.ln()).sum::<f64>() / all.len() as f64).exp()
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { rows, unknown, geomean, least, most, .. } = self;
        write!(
            f,
            "measured over predicted: geomean {geomean:.2}, from {least:.2} to {most:.2}, {rows} shapes"
        )?;
        write!(f, "; the model has no prediction for {unknown}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_of_the_suites_and_of_kernels_that_an_l4_runs() {
        let predictions: Predictions = serde_json::from_str(TABLE).expect("a table");
        let suites = suite::read(None, &[]).expect("built in");
        let again = "run python3 docs/l4_predict.py";
        let shapes = |all: &mut dyn Iterator<Item = (String, usize)>| all.collect::<Vec<_>>();
        let [ours, theirs] = [
            shapes(&mut suites.iter().map(|(name, all)| (name.clone(), all.len()))),
            shapes(&mut predictions.iter().map(|(name, all)| (name.clone(), all.len()))),
        ];
        assert_eq!(ours, theirs, "{again}");
        let l4 = ferroflash::Capabilities::profile("l4").expect("known");
        for (name, [least, most]) in predictions.values().flatten().flatten() {
            let kernel = ferroflash::spec::kernels().find(|kernel| kernel.symbol == name);
            let kernel = kernel.unwrap_or_else(|| panic!("{name} is no kernel: {again}"));
            assert!(l4.runs(&kernel).is_ok() && 0.0 < *least && least <= most, "{name}");
        }
    }

    #[test]
    fn what_an_l4_would_run_for_equal_lengths_is_predicted() {
        let predictions: Predictions = serde_json::from_str(TABLE).expect("a table");
        let l4 = ferroflash::Capabilities::profile("l4").expect("known");
        let suites = suite::read_forward(None, &[]).expect("built in");
        let mut known = 0;
        for (suite, shapes) in &suites {
            for (shape, predicted) in shapes.iter().zip(&predictions[suite]) {
                let problem = shape.problem().expect("valid");
                let kernel = ferroflash::plan::supports(&problem, l4).expect("an L4 runs it").symbol;
                known += usize::from(predicted.contains_key(kernel));
            }
        }
        let all: usize = suites.values().map(Vec::len).sum();
        assert!(known * 4 >= all * 3, "{known} of {all} shapes have a prediction of the kernel that runs");
    }

    #[test]
    fn rows_of_an_l4_get_predictions() {
        let suites = suite::read(None, &[]).expect("built in");
        let predictions: Predictions = serde_json::from_str(TABLE).expect("a table");
        let (entry, [_, most]) = predictions["prefill"][0].first_key_value().expect("predicted");
        let label = suites["prefill"][0].label.clone();
        let row =
            |shape: &str, us: f64| json!({"suite": "prefill", "shape": shape, "entry": entry, "p50_us": us});
        let mut bench = json!({"rows": [row(&label, 2.0 * most), row("another", 1.0)]});
        assert_eq!(hold("NVIDIA L40S", &mut bench), None);
        let held = hold(CARD, &mut bench).expect("one row is known");
        assert_eq!((held.rows, held.unknown, held.least, held.most), (1, 1, 2.0, 2.0));
        assert!((held.geomean - 2.0).abs() < 1e-12 && (held.suites["prefill"] - 2.0).abs() < 1e-12);
        assert_eq!(bench["rows"][0]["predicted_us"][1], json!(most));
        assert!(bench["rows"][1]["predicted_us"].is_null());
    }
}
