//! Draws a report.
use super::job::Row;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BAR: i32 = 16;
const WIDTH: i32 = 420;
const TOP: i32 = 48;
/// Width of a letter in a bar's label.
const LETTER: f64 = 5.6;

/// Above this number of operations per byte, the plot shows products instead of bytes. Cards can do 80 to 300
/// operations per byte. Decode needs 1 to 32 operations per byte, and the shortest prefill needs 128.
const BALANCE: f64 = 64.0;

/// The unit of a bar's length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Tflops,
    GbPerS,
}

impl Unit {
    const ALL: [(Unit, &str); 2] = [(Unit::Tflops, "TFLOP/s"), (Unit::GbPerS, "GB/s")];

    fn of(row: &Row) -> Self {
        if row.tflops * 1e3 < row.gb_per_s * BALANCE { Unit::GbPerS } else { Unit::Tflops }
    }

    fn value(self, row: &Row) -> f64 {
        match self {
            Unit::Tflops => row.tflops,
            Unit::GbPerS => row.gb_per_s,
        }
    }
}

/// Returns an SVG of throughput, one bar per row. Rows that products limit come before rows that bytes limit.
pub(super) fn svg(title: &str, rows: &[Row]) -> Result<String> {
    let parts = Unit::ALL.map(|(unit, name)| {
        (unit, name, rows.iter().filter(|row| Unit::of(row) == unit).collect::<Vec<_>>())
    });
    let parts: Vec<_> = parts.into_iter().filter(|(.., rows)| !rows.is_empty()).collect();
    let height = parts.iter().map(|(.., rows)| TOP + BAR * rows.len() as i32 + 12).sum::<i32>();
    let longest = rows.iter().map(|row| row.shape.len() + row.timing.len() + 2).max().unwrap_or(0);
    let left = 16 + (longest as f64 * LETTER) as i32;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, ((left + WIDTH + 110) as u32, height.max(TOP) as u32))
            .into_drawing_area();
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let label = |words: String, at: (i32, i32), size: i32, side: HPos| {
            let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
            root.draw(&Text::new(words, at, style)).map_err(|e| e.to_string())
        };
        let mut top = 0;
        for (unit, name, rows) in parts {
            label(format!("{title}: {name}"), (10, top + 20), 15, HPos::Left)?;
            let most = rows.iter().map(|row| unit.value(row)).fold(1.0, f64::max);
            for (n, row) in rows.iter().enumerate() {
                let y = top + TOP + BAR * n as i32;
                let right = left + (unit.value(row) / most * f64::from(WIDTH)) as i32;
                let colour = if row.timing == "hot" { RGBColor(194, 65, 12) } else { RGBColor(29, 78, 216) };
                root.draw(&Rectangle::new([(left, y + 2), (right, y + BAR - 2)], colour.filled()))
                    .map_err(|e| e.to_string())?;
                label(format!("{}, {}", row.shape, row.timing), (left - 8, y + BAR / 2), 10, HPos::Right)?;
                let value = format!("{:.0}  ({:.1} us)", unit.value(row), row.times.p50_us);
                label(value, (right + 5, y + BAR / 2), 10, HPos::Left)?;
            }
            top += TOP + BAR * rows.len() as i32 + 12;
        }
        root.present().map_err(|e| e.to_string())?;
    }
    Ok(text)
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
