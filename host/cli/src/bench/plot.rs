//! A report as a picture.
use super::Row;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BAR: i32 = 16;
const LEFT: i32 = 470;
const WIDTH: i32 = 420;
const TOP: i32 = 48;

/// An SVG of throughput, one bar a row.
pub(super) fn svg(title: &str, rows: &[Row]) -> Result<String> {
    let height = TOP + BAR * rows.len() as i32 + 12;
    let most = rows.iter().map(|row| row.tflops).fold(1.0, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, ((LEFT + WIDTH + 110) as u32, height as u32))
            .into_drawing_area();
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let label = |words: String, at: (i32, i32), size: i32, side: HPos| {
            let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
            root.draw(&Text::new(words, at, style)).map_err(|e| e.to_string())
        };
        label(format!("{title}: TFLOP/s"), (10, 20), 15, HPos::Left)?;
        for (n, row) in rows.iter().enumerate() {
            let y = TOP + BAR * n as i32;
            let right = LEFT + (row.tflops / most * f64::from(WIDTH)) as i32;
            let colour = if row.timing == "hot" { RGBColor(194, 65, 12) } else { RGBColor(29, 78, 216) };
            root.draw(&Rectangle::new([(LEFT, y + 2), (right, y + BAR - 2)], colour.filled()))
                .map_err(|e| e.to_string())?;
            label(format!("{}, {}", row.shape, row.timing), (LEFT - 8, y + BAR / 2), 10, HPos::Right)?;
            let value = format!("{:.0}  ({:.1} us)", row.tflops, row.times.p50_us);
            label(value, (right + 5, y + BAR / 2), 10, HPos::Left)?;
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
        let row = |shape: &str, tflops| {
            let times = Times { p50_us: 10.0, p90_us: 10.0, min_us: 10.0, noise: 0.0, samples: 3 };
            let [suite, shape, entry, timing] = ["s", shape, "e", "hot"].map(str::to_owned);
            Row { suite, shape, entry, timing, times, tflops, gb_per_s: 1.0 }
        };
        let text = svg("a card", &[row("fast & long", 400.0), row("slow", 100.0)]).expect("drawn");
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        assert!(text.contains("fast &amp; long, hot") && text.contains("a card: TFLOP/s"), "{text}");
        let widths: Vec<i32> = text
            .split("<rect ")
            .filter(|part| part.contains("#C2410C"))
            .map(|part| {
                let width = part.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
                width.and_then(|w| w.parse().ok()).expect("a width")
            })
            .collect();
        assert_eq!(widths.len(), 2, "{text}");
        assert!((f64::from(widths[0]) / f64::from(widths[1]) - 4.0).abs() < 0.1, "{widths:?}");
    }
}
