//! Parses directives about source code: files, lines, DWARF sections.

use super::Parser;
use crate::{ParseError, ast::Location, lex::Kind};

impl Parser<'_> {
    pub(super) fn file(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let index = self.int()? as u32;
        let Kind::Text(path) = self.next() else { return self.expected("a quoted path") };
        self.module.files.insert(index, path.into());
        while self.accept(',') {
            self.int()?;
        }
        Ok(())
    }

    /// Parses `.loc file line column[, function_name L, inlined_at file line column]`. Line 0 means that
    /// there is no line, and the previous line stays valid.
    pub(super) fn loc(&mut self) -> Result<(), ParseError> {
        let at = self.tokens.get(self.at).map_or(0, |token| token.at);
        self.at += 1;
        let (file, line, column) = (self.int()? as u32, self.int()? as u32, self.int()? as u32);
        if line != 0 {
            self.module.locations.push(Location { file, line, column, at });
            self.location = self.module.locations.len() as u32 - 1;
        }
        while self.accept(',') {
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    self.word("a label")?;
                    self.offset()?;
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.int()?;
                    }
                }
                _ => {
                    self.at -= 1;
                    return self.expected("`function_name` or `inlined_at`");
                }
            }
        }
        Ok(())
    }

    /// Parses `.section .debug_info { L: .b8 1, 2 .b64 other+4 }`. The simulator does not use the content.
    pub(super) fn section(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        if !self.word("a section name")?.starts_with(".debug_") {
            self.at -= 1;
            return self.expected("a section of DWARF, `.debug_..`");
        }
        self.expect('{')?;
        while !self.accept('}') {
            match self.kind() {
                Kind::Word(".b8" | ".b16" | ".b32" | ".b64") => {
                    self.at += 1;
                    self.value()?;
                    while self.accept(',') {
                        self.value()?;
                    }
                }
                Kind::Word(word) if !word.starts_with('.') && self.ahead(1) == Kind::Punct(':') => {
                    self.at += 2
                }
                _ => return self.expected("a label, `.b8`, `.b16`, `.b32`, `.b64` or `}`"),
            }
        }
        Ok(())
    }

    /// Parses a number, a label or another section, with an offset, or the distance between two labels.
    fn value(&mut self) -> Result<(), ParseError> {
        if !matches!(self.kind(), Kind::Word(_)) {
            return self.int().map(|_| ());
        }
        self.word("a label")?;
        if self.kind() == Kind::Punct('-') && matches!(self.ahead(1), Kind::Word(_)) {
            self.at += 2;
        }
        self.offset().map(|_| ())
    }
}
