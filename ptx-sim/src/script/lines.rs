//! Finds the statements in a text.

use super::ScriptError;

const KEYWORDS: [&str; 4] = ["buffer", "run", "expect", "report"];

/// Words of a statement with the line they came from.
pub(super) struct Statement<'t> {
    pub line: usize,
    pub words: Vec<&'t str>,
}

impl Statement<'_> {
    pub fn fail<T>(&self, message: impl Into<String>) -> Result<T, ScriptError> {
        Err(ScriptError::Syntax { line: self.line, message: message.into() })
    }

    fn is_known(&self) -> bool {
        self.words.first().is_some_and(|word| KEYWORDS.contains(word))
    }

    fn known(self) -> Result<Self, ScriptError> {
        if self.is_known() {
            return Ok(self);
        }
        let (word, keywords) = (self.words.first().unwrap_or(&""), KEYWORDS.join("`, `"));
        self.fail(format!(
            "`{word}` is none of `{keywords}`; prose stands behind `#`, in PTX in comments with an empty \
             line before statements"
        ))
    }
}

/// The statements of `text`, each beginning with a keyword.
///
/// # Errors
/// A line among statements, or in a file without PTX, that begins with no keyword: skipping it would skip
/// what a misspelt one asks for.
pub(super) fn statements(text: &str) -> Result<Vec<Statement<'_>>, ScriptError> {
    let ptx = text.lines().any(|line| line.trim_start().starts_with(".version"));
    let (mut all, mut paragraph) = (Vec::new(), Vec::new());
    for (at, text) in text.lines().enumerate() {
        let (comment, text) = match text.trim().strip_prefix("//") {
            Some(comment) => (true, comment.trim_start_matches('/')),
            None => (false, text.trim()),
        };
        let statement = Statement { line: at + 1, words: text.split_whitespace().collect() };
        let blank = statement.words.is_empty();
        if comment && !blank {
            paragraph.push(statement);
            continue;
        }
        close(&mut paragraph, &mut all)?;
        if !(comment || blank || ptx || text.starts_with('#')) {
            all.push(statement.known()?);
        }
    }
    close(&mut paragraph, &mut all)?;
    Ok(all)
}

/// Successive lines of comment are all statements or all prose.
fn close<'t>(paragraph: &mut Vec<Statement<'t>>, all: &mut Vec<Statement<'t>>) -> Result<(), ScriptError> {
    let prose = !paragraph.iter().any(Statement::is_known);
    for statement in paragraph.drain(..).filter(|_| !prose) {
        all.push(statement.known()?);
    }
    Ok(())
}
