//! Runs the command lines of `refusals.txt`, whose first lines explain the notation.
use crate::common::{DEMO, Folder, check};
use crate::tensors::{Tensors, write};
use safetensors::Dtype;

const ROWS: &str = include_str!("../refusals.txt");

/// Replaces each `<NAME>` by the text that the file defines for this name.
fn in_full(text: &str, names: &[(&str, String)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, full)| text.replace(&format!("<{name}>"), full))
}

/// Returns the tensors of `NAME:TYPE[SIZES]=VALUES;..`.
fn tensors(text: &str) -> Tensors {
    let mut all = Tensors::new();
    for tensor in text.split(';') {
        let (name, rest) = tensor.split_once(':').unwrap_or((tensor.trim_start_matches('-'), ""));
        // A tensor replaces the earlier tensor of its name. Names live as long as the program's tests.
        all.retain(|(earlier, ..)| *earlier != name);
        let Some((dtype, rest)) = rest.split_once('[') else { continue };
        let (sizes, values) = rest.split_once(']').expect("sizes in brackets");
        let shape: Vec<usize> =
            sizes.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().expect(text)).collect();
        let dtype: Dtype = serde_json::from_str(&format!("\"{dtype}\"")).expect("a type of safetensors");
        let count = shape.iter().product::<usize>();
        let values: Vec<_> = values.trim_start_matches('=').split(',').map(|x| bytes(dtype, x)).collect();
        let bytes = values.into_iter().cycle().take(count).flatten().collect();
        all.push((String::leak(name.to_owned()), dtype, shape, bytes));
    }
    all
}

/// Returns the bytes of one element.
fn bytes(dtype: Dtype, value: &str) -> Vec<u8> {
    match dtype {
        _ if value.is_empty() => vec![0; dtype.bitsize() / 8],
        Dtype::I32 => value.parse::<i32>().expect("an integer").to_le_bytes().into(),
        Dtype::F32 => value.parse::<f32>().expect("a number").to_le_bytes().into(),
        other => panic!("{other:?} has no values"),
    }
}

#[test]
fn every_row_is_refused() {
    let folder = Folder::new("refusals");
    let (mut names, mut words, mut is_refused) = (vec![], vec![], true);
    let lines = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        if let Some((name, text)) = line.split_once(" = ").filter(|(name, _)| !name.contains(' ')) {
            let text = in_full(text, &names);
            names.push((name, text));
        } else if let Some(message) = line.strip_prefix("  ") {
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            println!("{args:?}");
            check(&args, 2, message);
            is_refused = true;
        } else {
            assert!(std::mem::take(&mut is_refused), "a row before `{line}` has no words of its error");
            let word = |(at, word): (usize, &str)| match (word.strip_prefix("@@"), word.strip_prefix('@')) {
                (_, Some("demo")) => DEMO.to_owned(),
                (Some(text), _) => {
                    folder.write(&at.to_string(), &text.replace("\\s", " ").replace("\\n", "\n"))
                }
                (None, Some(all)) => write(&folder, &at.to_string(), &tensors(all)),
                (None, None) => word.to_owned(),
            };
            words = in_full(line, &names).split(' ').enumerate().map(word).collect();
        }
    }
}
