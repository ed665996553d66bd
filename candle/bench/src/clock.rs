//! Measures several libraries, which take turns in alternating order. Reports medians and ranges.
use crate::side::Side;
use candle::{Device, Result};
use serde_json::{json, Value};
use std::time::Instant;

/// Number and duration of a measurement's turns.
#[derive(Clone, Copy)]
pub struct Clock {
    /// Turns per side.
    pub rounds: usize,
    /// Approximate seconds of a turn.
    pub turn: f64,
}

impl Clock {
    /// Returns the seconds per call of `work` of each side: the median, the minimum and the maximum of the
    /// side's turns.
    pub fn measure(
        &self,
        device: &Device,
        sides: &[Side],
        mut work: impl FnMut(Side) -> Result<()>,
    ) -> Result<Vec<[f64; 3]>> {
        let mut calls = Vec::new();
        for &side in sides {
            // In the first call the driver compiles kernels. The second call determines the number of calls
            // per turn.
            work(side)?;
            work(side)?;
            device.synchronize()?;
            let one = seconds(device, 3, || work(side))?;
            calls.push(((self.turn / one) as usize).clamp(1, 2000));
        }
        let mut all = vec![Vec::new(); sides.len()];
        for round in 0..self.rounds {
            for i in 0..sides.len() {
                let i = if round % 2 == 0 { i } else { sides.len() - 1 - i };
                all[i].push(seconds(device, calls[i], || work(sides[i]))?);
            }
        }
        Ok(all.into_iter().map(summary).collect())
    }
}

/// Returns the seconds per call, measured over `calls` consecutive calls.
fn seconds(device: &Device, calls: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..calls {
        work()?;
    }
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

/// Returns the median, the minimum and the maximum.
pub fn summary(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[0], times[times.len() - 1]]
}

/// Returns a row of results: the fields of `what`, then `{side}_{unit}` and its range for each side. A second
/// has `of_a_second` units.
pub fn row(mut what: Value, sides: &[Side], times: &[[f64; 3]], unit: &str, of_a_second: f64) -> Value {
    for side in [Side::Ours, Side::Theirs, Side::Plain] {
        what[format!("{}_{unit}", side.name())] = Value::Null;
    }
    for (side, time) in sides.iter().zip(times) {
        let [median, least, most] = time.map(|t| (t * of_a_second * 1e4).round() / 1e4);
        what[format!("{}_{unit}", side.name())] = json!(median);
        what[format!("{}_{unit}_range", side.name())] = json!([least, most]);
    }
    let of = |side: Side| sides.iter().position(|s| *s == side).map(|i| times[i][0]);
    if let (Some(ours), Some(theirs)) = (of(Side::Ours), of(Side::Theirs)) {
        what["theirs_by_ours"] = json!((theirs / ours * 1e3).round() / 1e3);
    }
    println!("{what}");
    what
}
