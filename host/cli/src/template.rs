//! Templates of pages and plots.
use super::error::Error;
use minijinja::{AutoEscape, Environment, Value};

/// Fills a template of HTML or SVG with values, whose texts it escapes.
pub(super) fn fill(template: &str, values: Value) -> Result<String, Error> {
    let mut templates = Environment::new();
    templates.set_auto_escape_callback(|_| AutoEscape::Html);
    let filled = templates.render_str(template, values);
    let filled = filled.map_err(|error| Error::Invalid(format!("a template: {error:#}")))?;
    // Slashes need no escape, and a reader who searches the file for `TFLOP/s` finds them.
    Ok(filled.replace("&#x2f;", "/"))
}
