//! Splits PTX text into tokens.

use crate::ParseError;

/// The kind of a token. A word keeps its dots and `::`: `mma.sync.aligned` and `shared::cta` are one word
/// each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind<'t> {
    /// An identifier, an opcode, a register, or a directive (with its leading dot).
    Word(&'t str),
    /// An integer literal, in two's complement.
    Int(u64),
    /// A literal such as `0f3F800000`.
    F32(u32),
    /// A literal such as `0d3FF0000000000000`, or a decimal fraction.
    F64(u64),
    /// A quoted text, without its quotes.
    Text(&'t str),
    /// Any other character.
    Punct(char),
    /// The end of the text.
    End,
}

/// A token, and the line and column where it starts (both counted from 1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'t> {
    pub kind: Kind<'t>,
    /// The byte at which the token starts.
    pub at: u32,
    pub line: u32,
    pub column: u32,
}

/// Splits `text` into tokens, the last of which is [`Kind::End`].
pub(crate) fn lex(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    Lexer { text, bytes: text.as_bytes(), at: 0, line: 1, line_start: 0 }.run()
}

struct Lexer<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

fn starts_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn continues_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

impl<'t> Lexer<'t> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { line: self.line, column: self.column(), message: message.into() })
    }

    fn column(&self) -> u32 {
        (self.at - self.line_start) as u32 + 1
    }

    fn run(mut self) -> Result<Vec<Token<'t>>, ParseError> {
        let mut tokens = Vec::with_capacity(self.text.len() / 6);
        loop {
            self.skip_blanks()?;
            let (at, line, column) = (self.at as u32, self.line, self.column());
            let kind = self.token()?;
            tokens.push(Token { kind, at, line, column });
            if kind == Kind::End {
                return Ok(tokens);
            }
        }
    }

    fn newline(&mut self) {
        self.line += 1;
        self.line_start = self.at + 1;
    }

    fn skip_blanks(&mut self) -> Result<(), ParseError> {
        while self.at < self.bytes.len() {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.newline();
                    self.at += 1;
                }
                (byte, _) if byte.is_ascii_whitespace() => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    self.at += 2;
                    while !(self.peek(0) == b'*' && self.peek(1) == b'/') {
                        if self.at >= self.bytes.len() {
                            return self.fail("comment without end");
                        }
                        if self.peek(0) == b'\n' {
                            self.newline();
                        }
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn token(&mut self) -> Result<Kind<'t>, ParseError> {
        let Some(&first) = self.bytes.get(self.at) else { return Ok(Kind::End) };
        if first.is_ascii_digit() {
            return self.number();
        }
        if starts_word(first) {
            return Ok(self.word());
        }
        if first == b'"' {
            return self.quoted();
        }
        let punct = self.text[self.at..].chars().next().unwrap_or('\u{fffd}');
        self.at += punct.len_utf8();
        Ok(Kind::Punct(punct))
    }

    fn word(&mut self) -> Kind<'t> {
        let start = self.at;
        self.at += 1;
        loop {
            if continues_word(self.peek(0)) {
                self.at += 1;
            } else if self.peek(0) == b':' && self.peek(1) == b':' && continues_word(self.peek(2)) {
                self.at += 2;
            } else {
                return Kind::Word(&self.text[start..self.at]);
            }
        }
    }

    fn quoted(&mut self) -> Result<Kind<'t>, ParseError> {
        let start = self.at + 1;
        self.at = start;
        while self.at < self.bytes.len() && !matches!(self.peek(0), b'"' | b'\n') {
            self.at += 1 + usize::from(self.peek(0) == b'\\' && self.peek(1) == b'"');
        }
        if self.peek(0) != b'"' {
            return self.fail("text without closing quote");
        }
        self.at += 1;
        Ok(Kind::Text(&self.text[start..self.at - 1]))
    }

    fn number(&mut self) -> Result<Kind<'t>, ParseError> {
        let start = self.at;
        while self.peek(0).is_ascii_alphanumeric() {
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        let unsigned = digits.strip_suffix(['U', 'u']).unwrap_or(digits);
        let radix = |text: &str, radix| u64::from_str_radix(text, radix).ok();
        let value = if let Some(hex) = digits.strip_prefix("0f").or(digits.strip_prefix("0F")) {
            u32::from_str_radix(hex, 16).ok().map(Kind::F32)
        } else if let Some(hex) = digits.strip_prefix("0d").or(digits.strip_prefix("0D")) {
            radix(hex, 16).map(Kind::F64)
        } else if let Some(hex) = unsigned.strip_prefix("0x").or(unsigned.strip_prefix("0X")) {
            radix(hex, 16).map(Kind::Int)
        } else if let Some(binary) = unsigned.strip_prefix("0b").or(unsigned.strip_prefix("0B")) {
            radix(binary, 2).map(Kind::Int)
        } else if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
            self.text[start..self.at].parse::<f64>().ok().map(|value| Kind::F64(value.to_bits()))
        } else if unsigned.len() > 1
            && unsigned.starts_with('0')
            && unsigned.bytes().all(|b| b.is_ascii_digit())
        {
            radix(unsigned, 8).map(Kind::Int)
        } else {
            unsigned.parse().ok().map(Kind::Int)
        };
        match value {
            Some(kind) => Ok(kind),
            None => self.fail(format!("`{}` is not a number", &self.text[start..self.at])),
        }
    }
}
