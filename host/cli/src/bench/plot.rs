//! Draws a report.
use super::job::Row;
use crate::error::Error;
use crate::template;
use minijinja::context;

/// Width of a letter in a bar's label.
const LETTER: f64 = 5.6;

/// Above this number of operations per byte, the plot shows products instead of bytes. Cards can do 80 to 300
/// operations per byte. Decode needs 1 to 32 operations per byte, and the shortest prefill needs 128.
const BALANCE: f64 = 64.0;

/// Returns an SVG of throughput, one bar per row. Rows that products limit come before rows that bytes limit.
pub(super) fn svg(title: &str, rows: &[Row]) -> Result<String, Error> {
    let is_of_bytes = |row: &&Row| row.tflops * 1e3 < row.gb_per_s * BALANCE;
    let (bytes, products): (Vec<_>, Vec<_>) = rows.iter().partition(is_of_bytes);
    let part = |unit, rows: Vec<&Row>, value: fn(&Row) -> f64| {
        let most = rows.iter().map(|row| value(row)).fold(1.0, f64::max);
        let bar = |row: &&Row| {
            let (shape, timing, us, value) = (&row.shape, &row.timing, row.times.p50_us, value(row));
            context! { shape, timing, us, value, part => value / most }
        };
        context! { unit, rows => rows.iter().map(bar).collect::<Vec<_>>() }
    };
    let parts = [part("TFLOP/s", products, |row| row.tflops), part("GB/s", bytes, |row| row.gb_per_s)];
    let longest = rows.iter().map(|row| row.shape.len() + row.timing.len() + 2).max().unwrap_or(0);
    let left = 16 + (longest as f64 * LETTER) as usize;
    template::fill(include_str!("plot.svg"), context! { title, parts, left })
}

#[cfg(test)]
mod tests {
    use super::super::statistics::Times;
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_are_fast() {
        let row = |shape: &str, tflops, gb_per_s| {
            let times = Times { p50_us: 10.0, p90_us: 10.0, min_us: 10.0, noise: 0.0, samples: 3 };
            let [suite, shape, entry, timing] = ["s", shape, "e", "hot"].map(str::to_owned);
            Row { suite, shape, entry, timing, times, tflops, gb_per_s, sm_mhz: None }
        };
        let rows = [
            row("fast & long", 400.0, 1.0),
            row("a cache", 10.0, 4000.0),
            row("slow", 100.0, 1.0),
            row("half of it", 5.0, 2000.0),
        ];
        let text = svg("a card", &rows).expect("drawn");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        assert!(text.contains("fast &amp; long, hot") && text.contains("a card: TFLOP/s"), "{text}");
        assert!(text.contains("a card: GB/s"), "{text}");
        let widths: Vec<i32> = text
            .split("<rect ")
            .filter(|part| part.contains("#C2410C"))
            .map(|part| {
                let width = part.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
                width.and_then(|w| w.parse().ok()).expect("a width")
            })
            .collect();
        let [fast, slow, cache, half] = widths[..] else { panic!("{text}") };
        assert!((f64::from(fast) / f64::from(slow) - 4.0).abs() < 0.1, "{widths:?}");
        assert!(fast == cache && (f64::from(cache) / f64::from(half) - 2.0).abs() < 0.1, "{widths:?}");
    }
}
