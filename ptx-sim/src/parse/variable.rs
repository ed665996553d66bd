//! Parses variable declarations and initialisers.

use super::{Parser, type_bytes};
use crate::{
    ParseError,
    ast::{Relocation, Space, Variable},
    lex::Kind,
};

/// The content of an initialiser.
#[derive(Default)]
struct Initialiser {
    bytes: Vec<u8>,
    relocations: Vec<Relocation>,
}

impl Parser<'_> {
    /// Parses a declaration behind its state space: `.align 8 .b8 name[4] = {1, 2, 3, 4}, other`.
    pub(super) fn variables(&mut self, space: Space) -> Result<Vec<Variable>, ParseError> {
        let (mut align, mut bytes, mut vector, mut opaque) = (None, None, 1, false);
        loop {
            match self.kind() {
                Kind::Word(".align") if align.is_none() => align = Some(self.alignment()?),
                Kind::Word(".ptr") => self.pointee()?,
                Kind::Word(word @ (".v2" | ".v4")) if vector == 1 => {
                    vector = u64::from(word.as_bytes()[2] - b'0');
                    self.at += 1;
                }
                Kind::Word(".texref" | ".samplerref" | ".surfref") if bytes.is_none() => {
                    opaque = true;
                    bytes = Some(0);
                    self.at += 1;
                }
                Kind::Word(word) if word.starts_with('.') => {
                    let size = type_bytes(&word[1..]).filter(|_| bytes.is_none());
                    let Some(size) = size else { return self.expected("one type, and a name") };
                    bytes = Some(size);
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
            let mut initialiser = Initialiser::default();
            if self.accept('=') {
                match opaque {
                    true => self.texture()?,
                    false => initialiser = self.initialiser(element / vector)?,
                }
            }
            let Initialiser { bytes: init, relocations } = initialiser;
            size = size.max(init.len() as u64);
            if size > 1 << 31 {
                return self.fail(format!("variable {name} has {size} bytes, more than 2 GiB"));
            }
            let (name, align) = (name.into(), align.unwrap_or(element.max(1)));
            out.push(Variable { name, space, align, size, init, relocations, external: false, opaque });
            // A declaration of variables has one state space and several names: `.global .u32 a, b`. A list
            // of parameters has a state space before each name: `.param .u32 a, .param .u32 b`.
            if space == Space::Param
                && self.kind() == Kind::Punct(',')
                && matches!(self.ahead(1), Kind::Word(".param" | ".reg"))
                || !self.accept(',')
            {
                return Ok(out);
            }
        }
    }

    fn alignment(&mut self) -> Result<u64, ParseError> {
        self.at += 1;
        let value = self.int()?;
        if !value.is_power_of_two() || value > 1 << 20 {
            return self.fail(format!("alignment {value} is not a small power of two"));
        }
        Ok(value)
    }

    /// Parses `.ptr .global .align 16`, which describes the memory that a parameter points to. This attribute
    /// does not affect the place of the parameter.
    fn pointee(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        if matches!(self.kind(), Kind::Word(".global" | ".const" | ".shared" | ".local")) {
            self.at += 1;
        }
        if self.kind() == Kind::Word(".align") {
            self.alignment()?;
        }
        Ok(())
    }

    /// Parses `{ addr_mode_0 = clamp_to_border, filter_mode = nearest }`: a sampler, which no supported
    /// instruction uses.
    fn texture(&mut self) -> Result<(), ParseError> {
        self.expect('{')?;
        loop {
            self.word("a property of a texture, sampler or surface")?;
            self.expect('=')?;
            match self.kind() {
                Kind::Word(_) | Kind::Int(_) => self.at += 1,
                _ => return self.expected("a value"),
            }
            if !self.accept(',') {
                return self.expect('}');
            }
        }
    }

    fn initialiser(&mut self, element: u64) -> Result<Initialiser, ParseError> {
        let (mut all, mut depth, width) = (Initialiser::default(), 0usize, element.min(8) as usize);
        loop {
            match self.kind() {
                Kind::Punct('{') => depth += 1,
                Kind::Punct('}') => depth = depth.saturating_sub(1),
                Kind::Punct(',') if depth > 0 => {}
                Kind::Int(mask) if self.ahead(1) == Kind::Punct('(') => {
                    self.at += 2;
                    self.relocation(&mut all, width, mask.trailing_zeros() % 64)?;
                    if self.kind() != Kind::Punct(')') {
                        return self.expected("`)`");
                    }
                }
                Kind::Punct('-') | Kind::Int(_) => {
                    let value = self.int()?;
                    self.at -= 1;
                    all.bytes.extend_from_slice(&value.to_le_bytes()[..width]);
                }
                Kind::F32(bits) if width == 4 => all.bytes.extend_from_slice(&bits.to_le_bytes()),
                Kind::F64(bits) if width == 4 => {
                    all.bytes.extend_from_slice(&(f64::from_bits(bits) as f32).to_le_bytes());
                }
                Kind::F64(bits) => all.bytes.extend_from_slice(&bits.to_le_bytes()),
                Kind::Word(_) => {
                    self.relocation(&mut all, width, 0)?;
                    self.at -= 1;
                }
                _ => return self.expected("an initialiser"),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(all);
            }
        }
    }

    /// Parses `name`, `name+4`, `generic(name)` and `generic(name)+4`.
    fn relocation(&mut self, all: &mut Initialiser, bytes: usize, shift: u32) -> Result<(), ParseError> {
        let generic = self.accept_word("generic");
        if generic {
            self.expect('(')?;
        }
        self.addressed.push(self.at);
        let symbol = self.word("a variable or a function")?.into();
        let mut addend = self.offset()?;
        if generic {
            self.expect(')')?;
            addend = addend.wrapping_add(self.offset()?);
        }
        all.relocations.push(Relocation { at: all.bytes.len(), bytes, symbol, addend, shift });
        all.bytes.resize(all.bytes.len() + bytes, 0);
        Ok(())
    }
}
