//! Draws line charts as SVG in the page. On the horizontal axis, lengths double from mark to mark.

use std::fmt::Write;

use super::elements::escape;

/// The points of one line.
pub struct Line {
    /// The line's name.
    pub name: String,
    /// The points as `(length, value)`.
    pub points: Vec<(f64, f64)>,
    /// Whether the line belongs to FerroFlash. FerroFlash's lines have the page's colour.
    pub own: bool,
}

/// Left edge of the plot area.
const LEFT: f64 = 48.0;
/// Top edge of the plot area.
const TOP: f64 = 10.0;
/// Width of the plot area.
const WIDTH: f64 = 320.0;
/// Height of the plot area.
const HEIGHT: f64 = 180.0;
/// The dash pattern of FerroFlash's lines, and the patterns of other lines in their order, so that lines
/// differ even without colours.
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "8 3 2 3"];

/// A figure with a heading and a legend. Returns an empty text if there are no points.
pub fn lines(heading: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let mut lengths: Vec<f64> = points().map(|(length, _)| *length).collect();
    lengths.sort_by(f64::total_cmp);
    lengths.dedup();
    let (Some(first), Some(last)) = (lengths.first(), lengths.last()) else { return String::new() };
    let most = round_up(points().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max));
    let span = (last / first).log2().max(f64::MIN_POSITIVE);
    let x = |length: f64| LEFT + (length / first).log2() / span * WIDTH;
    let y = |value: f64| TOP + HEIGHT - value / most * HEIGHT;
    let mut drawn = String::new();
    for tick in 0..=4 {
        let value = most * f64::from(tick) / 4.0;
        let (at, left) = (y(value), LEFT - 5.0);
        let _ = write!(
            drawn,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}h{WIDTH}\"/><text x=\"{left}\" y=\"{:.1}\" \
             class=\"left\">{}</text>",
            at + 4.0,
            short(value)
        );
    }
    for length in &lengths {
        let (x, below) = (x(*length), TOP + HEIGHT + 16.0);
        let _ = write!(drawn, "<text x=\"{x:.1}\" y=\"{below}\">{}</text>", short(*length));
    }
    let mut names = String::new();
    let mut counts = [0; 2];
    for line in lines.iter().filter(|line| !line.points.is_empty()) {
        let count = &mut counts[usize::from(line.own)];
        let dashes = DASHES[*count % DASHES.len()];
        *count += 1;
        let class = if line.own { "line own" } else { "line" };
        let mut sorted = line.points.clone();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> =
            sorted.iter().map(|(length, value)| format!("{:.1},{:.1}", x(*length), y(*value))).collect();
        let stroke = format!("class=\"{class}\" stroke-dasharray=\"{dashes}\"");
        let _ = write!(drawn, "<polyline {stroke} points=\"{}\"/>", path.join(" "));
        for (length, value) in sorted {
            let (x, y) = (x(length), y(value));
            let title = format!("{}, {}: {}", escape(&line.name), short(length), short(value));
            let _ = write!(
                drawn,
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{title}</title>\
                 </circle>"
            );
        }
        let _ = write!(
            names,
            "<li><svg viewBox=\"0 0 24 8\"><path {stroke} d=\"M0 4h24\"/></svg>{}</li>",
            escape(&line.name)
        );
    }
    format!(
        "<div class=\"plot\"><h4>{}</h4><svg viewBox=\"0 0 380 214\" role=\"img\">{drawn}</svg>\
         <ul>{names}</ul></div>",
        escape(heading)
    )
}

/// The next larger number that is a power of ten times one of a few round numbers. A quarter of the result is
/// round too.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|rounded| *rounded >= value).unwrap_or(10.0 * power)
}

/// A number in three digits. Thousands are written as `k`. For powers of two, `k` means 1024.
fn short(value: f64) -> String {
    match value {
        1024.0.. if value % 1024.0 == 0.0 => format!("{}k", value / 1024.0),
        10_000.0.. => format!("{:.0}k", value / 1e3),
        1000.0.. => format!("{:.1}k", value / 1e3),
        10.0.. => format!("{value:.0}"),
        _ => format!("{:.2}", value).trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_scales_round() {
        let cases =
            [(0.0, "0"), (0.25, "0.25"), (512.0, "512"), (16384.0, "16k"), (1250.0, "1.2k"), (25e3, "25k")];
        for (value, said) in cases {
            assert_eq!(short(value), said);
        }
        for (value, rounded) in [(705.0, 800.0), (0.7, 0.8), (129.6, 160.0), (1000.0, 1000.0), (9.1, 10.0)] {
            assert!((round_up(value) - rounded).abs() < 1e-9 * rounded, "{value}");
        }
    }

    #[test]
    fn lines_without_points_are_not_drawn() {
        let line =
            |name: &str, points: &[(f64, f64)], own| Line { name: name.into(), points: points.into(), own };
        assert_eq!(lines("none", &[line("us", &[], true)]), "");
        let drawn =
            lines("<some>", &[line("us", &[(512.0, 1.0), (1024.0, 2.0)], true), line("peer", &[], false)]);
        assert!(drawn.contains("&lt;some&gt;") && drawn.contains("48.0,100.0 368.0,10.0"), "{drawn}");
        assert!(!drawn.contains("peer"));
    }
}
