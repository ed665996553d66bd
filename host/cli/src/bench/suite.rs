//! Shapes to measure: the built-in suites, or the user's file.
mod append;
mod backward;
mod count;
mod fields;
mod forward;
mod merge;
mod sequences;
mod serving;
mod workload;

use crate::error::Error;
use ferroflash::spec::GRADIENTS;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

pub(crate) use forward::Shape as ForwardShape;
pub(crate) use workload::Workload;

/// The files of built-in suites: forward shapes, which bench/compare.py also reads, serving shapes, and
/// backward shapes, which bench/backward.py also reads.
const BUILT_IN: [&str; 3] =
    [include_str!("suites.json"), include_str!("serving.json"), include_str!("backward.json")];

/// Returns the files of built-in suites whose kernels this build may have.
fn built_in() -> &'static [&'static str] {
    if GRADIENTS.is_empty() { &BUILT_IN[..2] } else { &BUILT_IN }
}

/// Suites by name.
pub(crate) type Suites<S> = BTreeMap<String, Vec<S>>;

/// One shape of a suite.
enum Shape {
    /// Sequences of equal lengths; each tensor is contiguous or packed.
    Forward(forward::Shape),
    /// Sequences of any lengths, on a cache or varlen.
    Serving(serving::Shape),
    /// An append of new tokens to a cache.
    Append(append::Shape),
    /// States to merge.
    Merge(merge::Shape),
    /// The backward pass of a forward shape.
    Backward(backward::Shape),
}

impl Shape {
    /// Determines the kind of a shape by a field that only this kind has. All other fields must then belong
    /// to the kind.
    fn parse(text: &RawValue) -> Result<Self, String> {
        let text = text.get();
        let value: Value = serde_json::from_str(text).map_err(fields::wrong)?;
        let of = |field: &str| value.get(field).is_some();
        // The fields are read from the text, because only the text shows a duplicate field.
        let shape = if of("sequences") {
            serde_json::from_str(text).map(Shape::Serving)
        } else if of("append") {
            serde_json::from_str(text).map(Shape::Append)
        } else if of("merge") {
            serde_json::from_str(text).map(Shape::Merge)
        } else if of("backward") {
            serde_json::from_str(text).map(Shape::Backward)
        } else {
            serde_json::from_str(text).map(Shape::Forward)
        };
        shape.map_err(fields::wrong)
    }

    fn workload(self) -> Result<Workload, Error> {
        match self {
            Shape::Forward(shape) => shape.workload(),
            Shape::Serving(shape) => shape.workload(),
            Shape::Append(shape) => shape.workload(),
            Shape::Merge(shape) => shape.workload(),
            Shape::Backward(shape) => shape.workload(),
        }
    }

    fn forward(self) -> Result<ForwardShape, Error> {
        match self {
            Shape::Forward(shape) => Ok(shape),
            _ => Err(Error::Invalid("it must be a forward shape, not a serving or backward shape".into())),
        }
    }
}

/// Reads suites from `file`, or the built-in suites. Keeps only the suites in `only`, unless it is empty.
pub(crate) fn read(file: Option<&Path>, only: &[String]) -> Result<Suites<Workload>, Error> {
    let suites = suites(file, built_in(), only, Shape::workload)?;
    for (suite, shapes) in &suites {
        for (at, Workload { label, .. }) in shapes.iter().enumerate() {
            // Labels must be unique, because comparisons with older reports use them.
            if let Some(first) = shapes[..at].iter().position(|shape| shape.label == *label) {
                let pair = format!("{}: suite {suite}, shapes {} and {}", name(file), first + 1, at + 1);
                return Err(Error::Invalid(format!("{pair} are equal, {label}: remove one")));
            }
        }
    }
    Ok(suites)
}

/// Reads forward shapes only.
pub(crate) fn read_forward(file: Option<&Path>, only: &[String]) -> Result<Suites<ForwardShape>, Error> {
    suites(file, &BUILT_IN[..1], only, Shape::forward)
}

/// Returns the source of the shapes, for messages.
fn name(file: Option<&Path>) -> String {
    file.map_or("the built-in suites".to_owned(), |file| file.display().to_string())
}

fn suites<S>(
    file: Option<&Path>,
    built_in: &[&str],
    only: &[String],
    of: impl Fn(Shape) -> Result<S, Error>,
) -> Result<Suites<S>, Error> {
    let name = name(file);
    let texts = match file {
        None => built_in.iter().copied().map(str::to_owned).collect(),
        Some(path) => {
            let unread = |e| Error::Invalid(format!("`{name}` cannot be read: {e}"));
            vec![std::fs::read_to_string(path).map_err(unread)?]
        }
    };
    let unlike = |e: String| Error::Invalid(format!("{name}: {e}; it must be like {LIKE}"));
    let mut suites = Suites::new();
    for text in texts {
        suites.extend(parse(&text).map_err(unlike)?);
    }
    if let Some(unknown) = only.iter().find(|name| !suites.contains_key(*name)) {
        let known: Vec<_> = suites.keys().map(String::as_str).collect();
        return Err(Error::Invalid(format!("{name} has no suite `{unknown}`, only {}", known.join(", "))));
    }
    suites.retain(|name, shapes| !shapes.is_empty() && (only.is_empty() || only.contains(name)));
    if suites.is_empty() {
        return Err(Error::Invalid(format!("{name}: there is no shape to measure")));
    }
    let wrong = |place: String, e: Error| Error::Invalid(format!("{name}: {place}: {e}"));
    each(suites, of, wrong)
}

/// An example of a valid file.
const LIKE: &str = "{\"mine\": [{\"batch\": 1, \"heads_q\": 8, \"heads_k\": 8, \"seqlen_q\": 512, \
                    \"seqlen_k\": 512, \"head_dim\": 64}, {\"sequences\": [[64, 1, 8192]], \"heads_q\": 32, \
                    \"heads_k\": 8, \"head_dim\": 128, \"page\": 16}]}";

fn parse(text: &str) -> Result<Suites<Shape>, String> {
    let Texts(suites) = serde_json::from_str(text).map_err(|e| e.to_string())?;
    each(suites, |text: Box<RawValue>| Shape::parse(&text), |place, e| format!("{place}: {e}"))
}

/// The texts of shapes by suite. No suite occurs twice.
struct Texts(Suites<Box<RawValue>>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Distinct;
        impl<'de> Visitor<'de> for Distinct {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("suites by name, each a list of shapes")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut suites = Suites::new();
                while let Some((name, shapes)) = map.next_entry::<String, _>()? {
                    if suites.insert(name.clone(), shapes).is_some() {
                        return Err(A::Error::custom(format_args!("suite `{name}` occurs twice")));
                    }
                }
                Ok(Texts(suites))
            }
        }
        from.deserialize_map(Distinct)
    }
}

/// Converts each shape. If a shape cannot be converted, the error names its position.
fn each<A, B, E, F>(
    suites: Suites<A>,
    make: impl Fn(A) -> Result<B, E>,
    wrong: impl Fn(String, E) -> F,
) -> Result<Suites<B>, F> {
    let suites = suites.into_iter().map(|(suite, shapes)| {
        let shapes = shapes
            .into_iter()
            .enumerate()
            .map(|(at, shape)| make(shape).map_err(|e| wrong(format!("suite {suite}, shape {}", at + 1), e)));
        let shapes = shapes.collect::<Result<_, F>>()?;
        Ok((suite, shapes))
    });
    suites.collect()
}

#[cfg(test)]
mod tests;
