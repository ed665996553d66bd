//! Converts text to tokens and back, and streams output.
use anyhow::{Context, Result, anyhow};
use std::io::Write;
use std::path::Path;
use tokenizers::Tokenizer;

/// Returns a checkpoint's `tokenizer.json`.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a tokenizer.
pub fn tokenizer(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    let failed = |e| anyhow!("{e}");
    Tokenizer::from_file(&path).map_err(failed).with_context(|| format!("cannot use {}", path.display()))
}

/// Returns the tokens of a prompt, including the checkpoint's leading special tokens.
///
/// # Errors
/// Returns an error if the tokenizer fails.
pub fn encode(tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(prompt, true).map_err(|e| anyhow!("{e}"))?;
    Ok(encoding.get_ids().to_vec())
}

/// Returns a count with its noun: `1 request`, `2 requests`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Prints the texts of several requests in order. The printer streams the first unfinished text. The other
/// texts follow when the first one is complete.
pub struct Printer<'t, W> {
    tokenizer: &'t Tokenizer,
    out: W,
    turn: usize,
    texts: Vec<Text>,
}

struct Text {
    tokens: Vec<u32>,
    /// Number of bytes of the decoded text that have been printed.
    printed: usize,
    done: bool,
}

impl<'t, W: Write> Printer<'t, W> {
    /// Creates a printer for `prompts`, the requests 0, 1, .. The printer also prints the prompts, because
    /// some tokenizers decode the first word of a text differently.
    pub fn new(tokenizer: &'t Tokenizer, out: W, prompts: &[Vec<u32>]) -> Self {
        let text = |tokens: &Vec<u32>| Text { tokens: tokens.clone(), printed: 0, done: false };
        Printer { tokenizer, out, turn: 0, texts: prompts.iter().map(text).collect() }
    }

    /// Takes a token of a request. `last` says that no token of the request follows.
    ///
    /// # Errors
    /// Returns an error if the output cannot be written.
    pub fn token(&mut self, request: usize, token: u32, last: bool) -> Result<()> {
        let text = &mut self.texts[request];
        text.tokens.push(token);
        text.done = last;
        while let Some(text) = self.texts.get_mut(self.turn) {
            let whole = self.tokenizer.decode(&text.tokens, true).map_err(|e| anyhow!("{e}"))?;
            // An incomplete character decodes to this replacement character.
            let end = if text.done { whole.len() } else { whole.trim_end_matches('\u{fffd}').len() };
            if let Some(new) = whole.get(text.printed..end) {
                write!(self.out, "{new}")?;
                text.printed = end;
            }
            self.out.flush()?;
            if !text.done {
                break;
            }
            writeln!(self.out)?;
            self.turn += 1;
        }
        Ok(())
    }
}
