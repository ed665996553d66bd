//! Finds the statements in a text.

use super::ScriptError;

const KEYWORDS: [&str; 4] = ["buffer", "run", "expect", "report"];

/// The words of a statement, with the number of their line.
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
            "`{word}` is none of `{keywords}`; write prose after `#`, or in PTX in comments with an empty \
             line before statements"
        ))
    }
}

/// The statements of `text`, each of which begins with a keyword.
///
/// # Errors
/// Returns an error for a line without a keyword that stands among statements or in a script file. The line
/// may be a misspelt statement, so the parser does not skip it.
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

/// Ends a paragraph of comment lines, which are either all statements or all prose.
fn close<'t>(paragraph: &mut Vec<Statement<'t>>, all: &mut Vec<Statement<'t>>) -> Result<(), ScriptError> {
    let prose = !paragraph.iter().any(Statement::is_known);
    for statement in paragraph.drain(..).filter(|_| !prose) {
        all.push(statement.known()?);
    }
    Ok(())
}
