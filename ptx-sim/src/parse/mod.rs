//! The parser of PTX modules. This file parses declarations, and [`body`] parses function bodies.
//!
//! The parser accepts any opcode. A launch decodes the opcodes and refuses unknown ones.

mod body;
mod debug;
pub(crate) mod directives;
mod scope;
mod variable;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    ParseError,
    ast::{Entry, Function, Location, Module, Operand, RegClass, Space, Symbol, Variable},
    lex::{Kind, Token, lex},
};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Module {
    /// Parses PTX text.
    ///
    /// # Errors
    /// Returns the first position at which the text is not PTX. The parser accepts an unknown opcode; a
    /// launch refuses it.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let mut parser = Parser {
            tokens: lex(text)?,
            at: 0,
            location: 0,
            addressed: Vec::new(),
            module: Module {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                version: (0, 0),
                target: "".into(),
                files: HashMap::new(),
                locations: vec![Location::default()],
                globals: Vec::new(),
                functions: Vec::new(),
                entries: Vec::new(),
                refused: Vec::new(),
                text: text.into(),
                aliases: HashMap::new(),
            },
        };
        parser.module()?;
        parser.check_addressed()?;
        let mut module = parser.module;
        module.entries =
            module.functions.iter().filter(|f| f.entry && f.defined).map(|f| entry(&module, f)).collect();
        Ok(module)
    }
}

fn entry(module: &Module, function: &Function) -> Entry {
    let params = &function.variables[..function.n_params];
    let param_bytes = layout(params).last().map_or(0, |&(offset, size)| offset + size);
    Entry {
        name: function.name.to_string(),
        param_bytes: param_bytes as usize,
        param_align: params.iter().map(|param| param.align).max().unwrap_or(1) as usize,
        reqntid: function.reqntid,
        maxntid: function.maxntid,
        minnctapersm: function.minnctapersm,
        maxnreg: function.maxnreg,
        target: module.target.to_string(),
        static_shared: static_shared(module, function).min(u64::from(u32::MAX)) as u32,
    }
}

/// The offset and the size of each variable, if the variables are laid out in order.
pub(crate) fn layout(variables: &[Variable]) -> Vec<(u64, u64)> {
    let mut end = 0u64;
    let place = |variable: &Variable| {
        let offset = end.next_multiple_of(variable.align.max(1));
        end = offset.saturating_add(variable.size);
        (offset, variable.size)
    };
    variables.iter().map(place).collect()
}

/// The names of the module variables and functions that `function` can reach, including its own name.
pub(crate) fn reachable(module: &Module, function: &Function) -> HashSet<Box<str>> {
    fn names<'a>(operands: &'a [Operand], out: &mut Vec<&'a str>) {
        for operand in operands {
            match operand {
                Operand::Symbol(Symbol::Named(name), _) => out.push(name),
                Operand::Address(base, _, rest) => {
                    if let crate::ast::Base::Symbol(Symbol::Named(name)) = base {
                        out.push(name);
                    }
                    names(rest, out);
                }
                Operand::Vector(inner) | Operand::Group(inner) => names(inner, out),
                _ => {}
            }
        }
    }
    let mut seen = HashSet::from([function.name.clone()]);
    let mut todo = vec![function];
    while let Some(function) = todo.pop() {
        let mut found = Vec::new();
        for instruction in &function.instructions {
            names(&instruction.operands, &mut found);
        }
        // This loop follows the names in the initialisers of variables.
        while let Some(name) = found.pop() {
            if !seen.insert(name.into()) {
                continue;
            }
            if let Some(callee) = module.function(name) {
                seen.insert(module.functions[callee].name.clone());
                todo.push(&module.functions[callee]);
            }
            let variables = module.globals.iter().filter(|variable| *variable.name == *name);
            found.extend(variables.flat_map(|variable| &variable.relocations).map(|it| &*it.symbol));
        }
    }
    seen
}

fn static_shared(module: &Module, function: &Function) -> u64 {
    let used = reachable(module, function);
    let shared =
        module.globals.iter().filter(|v| v.space == Space::Shared && !v.external && used.contains(&v.name));
    let own = module.functions.iter().filter(|f| used.contains(&f.name)).flat_map(|f| &f.variables);
    let all: Vec<_> = shared.chain(own.filter(|v| v.space == Space::Shared)).cloned().collect();
    layout(&all).last().map_or(0, |&(offset, size)| offset.saturating_add(size))
}

/// Number of bytes of a scalar type such as `b32` (without a dot).
pub(crate) fn type_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "pred" | "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

fn class(name: &str) -> Option<RegClass> {
    Some(match type_bytes(name)? {
        _ if name == "pred" => RegClass::Pred,
        8 => RegClass::B64,
        16 => RegClass::B128,
        _ => RegClass::B32,
    })
}

struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    at: usize,
    location: u32,
    /// The tokens of initialisers that name a variable or a function.
    addressed: Vec<usize>,
    module: Module,
}

impl<'t> Parser<'t> {
    fn kind(&self) -> Kind<'t> {
        self.tokens.get(self.at).map_or(Kind::End, |token| token.kind)
    }

    fn ahead(&self, n: usize) -> Kind<'t> {
        self.tokens.get(self.at + n).map_or(Kind::End, |token| token.kind)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |token| token.line)
    }

    fn next(&mut self) -> Kind<'t> {
        let kind = self.kind();
        self.at += usize::from(kind != Kind::End);
        kind
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        let (line, column) = self.tokens.get(self.at).map_or((0, 0), |token| (token.line, token.column));
        Err(ParseError { line, column, message: message.into() })
    }

    fn expected<T>(&self, what: &str) -> Result<T, ParseError> {
        let found = match self.kind() {
            Kind::Word(word) => format!("`{word}`"),
            Kind::Punct(c) => format!("`{c}`"),
            Kind::Int(value) => format!("`{value}`"),
            Kind::F32(_) | Kind::F64(_) => "a float".into(),
            Kind::Text(_) => "quoted text".into(),
            Kind::End => "the end of the text".into(),
        };
        self.fail(format!("expected {what}, found {found}"))
    }

    fn accept(&mut self, punct: char) -> bool {
        let found = self.kind() == Kind::Punct(punct);
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.kind() == Kind::Word(word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: char) -> Result<(), ParseError> {
        if self.accept(punct) { Ok(()) } else { self.expected(&format!("`{punct}`")) }
    }

    fn word(&mut self, what: &str) -> Result<&'t str, ParseError> {
        match self.kind() {
            Kind::Word(word) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.expected(what),
        }
    }

    fn int(&mut self) -> Result<u64, ParseError> {
        let negative = self.accept('-');
        match self.kind() {
            Kind::Int(value) => {
                self.at += 1;
                Ok(if negative { value.wrapping_neg() } else { value })
            }
            _ => self.expected("an integer"),
        }
    }

    fn module(&mut self) -> Result<(), ParseError> {
        loop {
            match self.kind() {
                Kind::End => return Ok(()),
                Kind::Punct(';') => self.at += 1,
                Kind::Word(".version") => self.version()?,
                Kind::Word(".target") => {
                    self.at += 1;
                    self.module.target = self.word("a target such as sm_80")?.into();
                    while self.accept(',') {
                        self.target_option()?;
                    }
                }
                Kind::Word(".address_size") => {
                    self.at += 1;
                    if self.int()? != 64 {
                        return self.fail("only `.address_size 64` is supported");
                    }
                }
                Kind::Word(".file") => self.file()?,
                Kind::Word(".loc") => self.loc()?,
                Kind::Word(".section") => self.section()?,
                Kind::Word(".pragma") => {
                    let unknown = self.pragma()?;
                    self.module.refused.extend(unknown);
                }
                Kind::Word(".alias") => self.alias()?,
                Kind::Word(word) if word.starts_with('.') => self.declaration()?,
                _ => return self.expected("a directive"),
            }
        }
    }

    /// Parses `.alias other, function;`.
    fn alias(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let name = self.word("a function")?;
        self.expect(',')?;
        let function = self.word("a function")?;
        self.module.aliases.insert(name.into(), function.into());
        self.expect(';')
    }

    /// Checks names in initialisers, which may name variables and functions that are declared later.
    fn check_addressed(&mut self) -> Result<(), ParseError> {
        for at in std::mem::take(&mut self.addressed) {
            self.at = at;
            if let Kind::Word(name) = self.kind()
                && self.module.function(name).is_none()
                && !self.module.globals.iter().any(|variable| *variable.name == *name)
            {
                return self.fail(format!("this module has no variable or function `{name}`"));
            }
        }
        Ok(())
    }

    fn version(&mut self) -> Result<(), ParseError> {
        self.at += 1;
        let text = match self.next() {
            Kind::F64(bits) => f64::from_bits(bits).to_string(),
            Kind::Int(value) => value.to_string(),
            _ => return self.expected("a version such as 7.8"),
        };
        let (major, minor) = text.split_once('.').unwrap_or((&text, "0"));
        self.module.version = (major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
        Ok(())
    }

    /// Parses a function or a variable, with its linkage words.
    fn declaration(&mut self) -> Result<(), ParseError> {
        let mut external = false;
        loop {
            match self.kind() {
                Kind::Word(".visible" | ".weak" | ".common") => self.at += 1,
                Kind::Word(".extern") => {
                    external = true;
                    self.at += 1;
                }
                Kind::Word(".entry" | ".func") => return self.function(),
                Kind::Word(word) => {
                    // `.tex .u64 name;` is an old form of `.global .texref name;`.
                    let texture = word == ".tex";
                    let Some(space) = space(word).or(texture.then_some(Space::Global)) else {
                        return self.expected("`.entry`, `.func` or a state space");
                    };
                    self.at += 1;
                    let mut variables = self.variables(space)?;
                    for variable in &mut variables {
                        variable.external = external;
                        variable.opaque |= texture;
                    }
                    self.module.globals.append(&mut variables);
                    return self.expect(';');
                }
                _ => return self.expected("`.entry`, `.func` or a state space"),
            }
        }
    }
}

/// The state space that a directive such as `.shared` names.
pub(crate) fn space(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}
