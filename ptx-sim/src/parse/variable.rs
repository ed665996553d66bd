//! Variable declarations and their initialisers.

use super::{Parser, type_bytes};
use crate::{
    ParseError,
    ast::{Space, Variable},
    lex::Kind,
};

impl Parser<'_> {
    /// After the state space: `.align 8 .b8 name[4] = {1, 2, 3, 4}, other`
    pub(super) fn variables(&mut self, space: Space) -> Result<Vec<Variable>, ParseError> {
        let (mut align, mut bytes, mut vector) = (None, None, 1);
        loop {
            match self.kind() {
                Kind::Word(".align") => {
                    self.at += 1;
                    let value = self.int()?;
                    if !value.is_power_of_two() || value > 1 << 20 {
                        return self.fail(format!("alignment {value} is not a small power of two"));
                    }
                    align = Some(value);
                }
                Kind::Word(".ptr" | ".global" | ".const" | ".shared" | ".local") => self.at += 1,
                Kind::Word(word @ (".v2" | ".v4")) => {
                    vector = u64::from(word.as_bytes()[2] - b'0');
                    self.at += 1;
                }
                Kind::Word(word) if word.starts_with('.') => {
                    let Some(size) = type_bytes(&word[1..]) else { return self.expected("a type") };
                    bytes.get_or_insert(size);
                    self.at += 1;
                }
                _ => break,
            }
        }
        let Some(element) = bytes.map(|bytes| bytes * vector) else { return self.expected("a type") };
        let mut out = Vec::new();
        loop {
            let name = self.word("a name")?;
            let mut size = element;
            while self.accept('[') {
                let length = if self.kind() == Kind::Punct(']') { 0 } else { self.int()? };
                size = size.saturating_mul(length);
                self.expect(']')?;
            }
            let init = if self.accept('=') { self.initialiser(element)? } else { Vec::new() };
            size = size.max(init.len() as u64);
            if size > 1 << 31 {
                return self.fail(format!("variable {name} has {size} bytes, more than 2 GiB"));
            }
            let align = align.unwrap_or(element);
            out.push(Variable { name: name.into(), space, align, size, init, external: false });
            // Parameters repeat the state space instead.
            if space == Space::Param
                && self.kind() == Kind::Punct(',')
                && matches!(self.ahead(1), Kind::Word(".param" | ".reg"))
                || !self.accept(',')
            {
                return Ok(out);
            }
        }
    }

    fn initialiser(&mut self, element: u64) -> Result<Vec<u8>, ParseError> {
        let (mut bytes, mut depth) = (Vec::new(), 0usize);
        loop {
            match self.kind() {
                Kind::Punct('{') => depth += 1,
                Kind::Punct('}') => depth = depth.saturating_sub(1),
                Kind::Punct(',' | '-') if depth > 0 => {}
                Kind::Int(value) => {
                    let negative = self.at > 0 && self.tokens[self.at - 1].kind == Kind::Punct('-');
                    let value = if negative { value.wrapping_neg() } else { value };
                    bytes.extend_from_slice(&value.to_le_bytes()[..element.min(8) as usize]);
                }
                Kind::F32(bits) => bytes.extend_from_slice(&bits.to_le_bytes()),
                Kind::F64(bits) => bytes.extend_from_slice(&bits.to_le_bytes()),
                Kind::Word(_) => return self.fail("symbols in initialisers are not supported"),
                _ => return self.expected("an initialiser"),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(bytes);
            }
        }
    }
}
