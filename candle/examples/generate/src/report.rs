//! A report as a table and as a picture.
use crate::bench::{Point, Report};
use crate::text::count;
use std::fmt::Write;

/// Returns one line per context, one column per batch size.
pub fn table(report: &Report) -> String {
    let mut text = format!(
        "{:.2}e9 parameters, {}, {} attention\n",
        report.parameters as f64 / 1e9,
        report.dtype,
        report.attention
    );
    text += "  context  batch   prefill ms     tokens/s   ms a step     tokens/s\n";
    for point in &report.contexts {
        let Point { context, batch, prefill_ms, step_ms } = point;
        let (prefill, rate) = (point.prefill_rate(), point.rate());
        let _ = writeln!(
            text,
            "{context:>9} {batch:>6} {prefill_ms:>12.1} {prefill:>12.0} {step_ms:>11.2} {rate:>12.0}"
        );
    }
    if let Some(ragged) = &report.ragged {
        let _ = writeln!(
            text,
            "{} of {} on {}: {} new tokens in {:.2} s, {:.0} a second",
            count(ragged.requests, "request"),
            count(ragged.prompts, "token"),
            count(ragged.seats, "seat"),
            ragged.tokens,
            ragged.seconds,
            ragged.tokens as f64 / ragged.seconds
        );
    }
    text
}

/// Rounds up to a number whose quarters are round numbers too.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|most| *most >= value).unwrap_or(10.0 * power)
}

const COLOURS: [&str; 6] = ["#b7410e", "#1f5fa8", "#2e7d32", "#6a1b9a", "#ad8b00", "#455a64"];
/// Left, top, width and height of the plot area.
const FRAME: [f64; 4] = [60.0, 40.0, 520.0, 260.0];

/// Returns an SVG with the milliseconds of a step by context, and one line per batch size.
pub fn svg(report: &Report) -> String {
    let [left, top, width, height] = FRAME;
    let contexts = report.contexts.iter().map(|point| (point.context as f64).log2());
    let (low, high) = contexts.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
    let most = round_up(report.contexts.iter().map(|point| point.step_ms).fold(1e-3, f64::max));
    let x = |context: usize| left + ((context as f64).log2() - low) / (high - low).max(1e-9) * width;
    let y = |ms: f64| top + height - ms / most * height;
    let mut text = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 660 350' font-family='sans-serif' \
         font-size='12'>\n<rect width='660' height='350' fill='white'/>\n<text x='{left}' y='22'>\
         Milliseconds of a step by context: {:.2}e9 parameters, {}, {} attention</text>\n",
        report.parameters as f64 / 1e9,
        report.dtype,
        report.attention
    );
    for tick in 0..=4 {
        let ms = most * f64::from(tick) / 4.0;
        let at = y(ms);
        let _ = writeln!(
            text,
            "<path d='M{left} {at:.1}h{width}' stroke='#ddd'/><text x='{:.0}' y='{:.1}' \
             text-anchor='end'>{ms:.2}</text>",
            left - 6.0,
            at + 4.0
        );
    }
    let mut batches: Vec<usize> = report.contexts.iter().map(|point| point.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    let mut named = Vec::new();
    for (index, batch) in batches.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<&Point> = report.contexts.iter().filter(|point| point.batch == *batch).collect();
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", x(point.context), y(point.step_ms))).collect();
        let _ = writeln!(
            text,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='2'/>",
            path.join(" ")
        );
        for point in points {
            if !named.contains(&point.context) {
                named.push(point.context);
            }
            let (x, y) = (x(point.context), y(point.step_ms));
            let _ = writeln!(text, "<circle cx='{x:.1}' cy='{y:.1}' r='3' fill='{colour}'/>");
        }
        let (x, y) = (left + width + 10.0, top + 14.0 + 18.0 * index as f64);
        let _ = writeln!(text, "<text x='{x:.0}' y='{y:.0}' fill='{colour}'>batch {batch}</text>");
    }
    for context in named {
        let (x, y) = (x(context), top + height + 18.0);
        let _ = writeln!(text, "<text x='{x:.1}' y='{y:.0}' text-anchor='middle'>{context}</text>");
    }
    text + "</svg>\n"
}
