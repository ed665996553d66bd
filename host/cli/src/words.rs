//! Errors of the library in the program's words: its options, and the tensors of its files.
use ferroflash::Error;

/// Fields of the library's requests that an option of the program sets.
const OPTIONS: [(&str, &str); 3] = [("config", "--config"), ("scale", "--scale"), ("softcap", "--softcap")];

/// Parts of the library's errors that name its fields, types or functions, and the program's words for them.
const WORDS: [(&str, &str); 21] = [
    ("not supported: scale", "not supported: --scale"),
    ("not supported: precision", "not supported: --precision"),
    ("use `Precision::Inputs`", "leave --precision out"),
    ("leave config out, or invariance", "leave --config or --invariant out"),
    ("leave config out", "leave --config out"),
    ("head_dim_v", "head_dim of v"),
    ("k of a latent cache may", "k of a latent cache (--v-width) may"),
    ("shared_prefixes in two passes", "--shared-pages"),
    ("leave `always` (the program's --shared-pages) out", "leave --shared-pages out"),
    ("leave softcap out", "leave --softcap out"),
    ("leave invariance out of the forward that the backward pass describes", "leave --invariant out"),
    ("use `latent_scaled`", "store U8 rows of 656 bytes"),
    ("the invariance `Batch`", "--invariant batch"),
    (" with invariance BatchAndChunks", " with --invariant chunks"),
    (" with invariance Batch", " with --invariant batch"),
    ("; leave precision out", "; leave --precision out"),
    (" with invariance ", " with --invariant "),
    ("leave alibi out", "remove `alibi_slopes`"),
    ("leave bias out", "remove `bias`"),
    ("make one request", "write one file"),
    (
        "ask for the LSE, fill it with -inf before the launch, and add the sinks with `Merge`",
        "remove `sinks`, and add them to o with the LSE of --output",
    ),
];

/// Returns the text of an error of the library in the program's words. The caller's value stays as it is.
pub(super) fn of(error: &Error) -> String {
    let Error::Invalid { what, value, expected, .. } = error else { return in_words(&error.to_string()) };
    if let Some((_, option)) = OPTIONS.iter().find(|(field, _)| field == what) {
        return format!("{option} {value}: {}", in_words(expected));
    }
    let text = error.to_string();
    match text.split_once(value.as_str()) {
        Some((before, after)) => [&in_words(before), value.as_str(), &in_words(after)].concat(),
        None => in_words(&text),
    }
}

fn in_words(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (library, program)| text.replace(library, program))
}
