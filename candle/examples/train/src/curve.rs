//! The loss curve, as a picture.
use std::fmt::Write;

const WIDTH: f32 = 720.0;
const HEIGHT: f32 = 360.0;
const MARGIN: f32 = 40.0;

/// Returns an SVG of the losses by step.
pub fn svg(losses: &[f32]) -> String {
    let finite = || losses.iter().copied().filter(|loss| loss.is_finite());
    let (low, high) = (finite().fold(f32::INFINITY, f32::min), finite().fold(f32::NEG_INFINITY, f32::max));
    let (last, range) = (losses.len().saturating_sub(1).max(1) as f32, (high - low).max(1e-6));
    let x = |step: usize| MARGIN + step as f32 / last * (WIDTH - 2.0 * MARGIN);
    let y = |loss: f32| MARGIN + (high - loss) / range * (HEIGHT - 2.0 * MARGIN);
    let mut points = String::new();
    for (step, loss) in losses.iter().enumerate().filter(|(_, loss)| loss.is_finite()) {
        let _ = write!(points, "{:.1},{:.1} ", x(step), y(*loss));
    }
    let (bottom, right) = (HEIGHT - MARGIN, WIDTH - MARGIN);
    let mut labels = String::new();
    for (loss, at) in [(high, MARGIN), (low, bottom)].into_iter().filter(|(loss, _)| loss.is_finite()) {
        let _ = write!(labels, r#"<text x="4" y="{at}">{loss:.2}</text>"#);
    }
    let steps = losses.len();
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-size="12">
<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>
<path d="M{MARGIN} {MARGIN}V{bottom}H{right}" fill="none" stroke="#888"/>
<polyline points="{points}" fill="none" stroke="#c2410c" stroke-width="1.5"/>
{labels}
<text x="{MARGIN}" y="{HEIGHT}" dy="-12">loss by step, {steps} steps</text>
</svg>
"##
    )
}
