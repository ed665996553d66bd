//! Parses function headers and bodies.

use super::{Parser, class, scope::Meaning, scope::Scopes, space};
use crate::{
    ParseError,
    ast::{Base, Function, Instruction, Operand, RegClass, Space, Symbol, Variable},
    lex::Kind,
};

/// Largest nesting depth of `{ }` scopes and of operand lists. The nesting in compiled code is below ten.
const MAX_DEPTH: usize = 64;

/// A parameter or a result, and the width of its register if it is a register.
pub(super) struct Parameter {
    variable: Variable,
    register: Option<RegClass>,
}

impl Parser<'_> {
    pub(super) fn function(&mut self) -> Result<(), ParseError> {
        let mut function =
            Function { line: self.line(), entry: self.kind() == Kind::Word(".entry"), ..Function::default() };
        self.at += 1;
        let mut scopes = Scopes::new();
        let mut returns = Vec::new();
        if !function.entry && self.kind() == Kind::Punct('(') {
            returns = self.parameters()?;
        }
        function.name = self.word("a function name")?.into();
        let mut all = if self.kind() == Kind::Punct('(') { self.parameters()? } else { Vec::new() };
        function.n_params = all.len();
        function.n_returns = returns.len();
        all.append(&mut returns);
        for (index, Parameter { variable, register }) in all.into_iter().enumerate() {
            match register {
                Some(class) => {
                    function.in_registers.push((index as u32, function.n_registers));
                    scopes.registers(&variable.name, None, class, &mut function);
                }
                None => scopes.variable(&variable.name, index as u32),
            }
            function.variables.push(variable);
        }
        self.performance_directives(&mut function)?;
        if self.accept(';') {
            self.module.functions.push(function);
            return Ok(());
        }
        self.expect('{')?;
        function.defined = true;
        self.location = 0;
        self.body(&mut function, &mut scopes)?;
        self.module.functions.push(function);
        Ok(())
    }

    pub(super) fn parameters(&mut self) -> Result<Vec<Parameter>, ParseError> {
        self.expect('(')?;
        let mut all = Vec::new();
        while !self.accept(')') {
            let in_register = self.accept_word(".reg");
            if !in_register && !self.accept_word(".param") {
                return self.expected("`.param`");
            }
            let class = match self.kind() {
                Kind::Word(ty) if in_register => ty.strip_prefix('.').and_then(class),
                _ => None,
            };
            if in_register && class.is_none() {
                return self.expected("a register type");
            }
            let parameter = |variable| Parameter { variable, register: class };
            all.extend(self.variables(Space::Param)?.into_iter().map(parameter));
            self.accept(',');
        }
        Ok(all)
    }

    fn body(&mut self, function: &mut Function, scopes: &mut Scopes) -> Result<(), ParseError> {
        loop {
            match self.kind() {
                Kind::End => return self.expected("`}` at the end of the function"),
                Kind::Punct(';') => self.at += 1,
                Kind::Punct('{') => {
                    if scopes.depth() > MAX_DEPTH {
                        return self.fail("scopes nest too deeply");
                    }
                    self.at += 1;
                    scopes.push();
                }
                Kind::Punct('}') => {
                    self.at += 1;
                    scopes.pop(function);
                    if scopes.depth() == 0 {
                        return Ok(());
                    }
                }
                Kind::Punct('@') => self.instruction(function, scopes)?,
                Kind::Word(".reg") => self.registers(function, scopes)?,
                Kind::Word(".loc") => self.loc()?,
                Kind::Word(".file") => self.file()?,
                Kind::Word(".section") => self.section()?,
                Kind::Word(".pragma") => {
                    let unknown = self.pragma()?;
                    function.refused.extend(unknown);
                }
                Kind::Word(".callprototype") => self.prototype()?,
                Kind::Word(".branchtargets" | ".calltargets") => self.instruction(function, scopes)?,
                Kind::Word(word) if word.starts_with('.') => {
                    let Some(space) = space(word) else {
                        return self.fail(format!("unknown directive `{word}`"));
                    };
                    self.at += 1;
                    for variable in self.variables(space)? {
                        scopes.variable(&variable.name, function.variables.len() as u32);
                        function.variables.push(variable);
                    }
                    self.expect(';')?;
                }
                Kind::Word(word) if self.ahead(1) == Kind::Punct(':') => {
                    if !scopes.label(word, function.instructions.len() as u32) {
                        return self.fail(format!("label `{word}` appears twice in one scope"));
                    }
                    self.at += 2;
                }
                Kind::Word(_) => self.instruction(function, scopes)?,
                _ => return self.expected("an instruction, a label or a directive"),
            }
        }
    }

    /// Parses declarations such as `.reg .b32 %r<9>;`, `.reg .pred p, q;` and `.reg .v2 .f32 %v;`.
    fn registers(&mut self, function: &mut Function, scopes: &mut Scopes) -> Result<(), ParseError> {
        self.at += 1;
        let vector = match self.kind() {
            Kind::Word(".v2") => 2,
            Kind::Word(".v4") => 4,
            _ => 1,
        };
        self.at += usize::from(vector > 1);
        let ty = self.word("a register type")?;
        let Some(class) = ty.strip_prefix('.').and_then(class) else {
            self.at -= 1;
            return self.expected("a register type");
        };
        loop {
            let name = self.word("a register name")?;
            let mut count = None;
            if self.accept('<') {
                count = Some(u32::try_from(self.int()?).unwrap_or(u32::MAX));
                self.expect('>')?;
            }
            let declared = match vector {
                1 => scopes.registers(name, count, class, function),
                _ => scopes.vectors(name, count, vector, class, function),
            };
            if !declared {
                return self.fail("more registers than 2^24 in one function");
            }
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    fn instruction(&mut self, function: &mut Function, scopes: &mut Scopes) -> Result<(), ParseError> {
        let start = self.tokens.get(self.at).map_or(0, |token| token.at);
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            let name = self.word("a predicate")?;
            let Meaning::Register(id) = scopes.lookup(name) else {
                self.at -= 1;
                return self.expected("a declared predicate");
            };
            guard = Some((id, negated));
        }
        let line = self.line();
        let opcode = self.word("an opcode")?;
        let mut operands = Vec::new();
        while !self.accept(';') {
            operands.push(self.operand(scopes, 0)?);
            if !self.accept(',') {
                self.expect(';')?;
                break;
            }
        }
        let at = function.instructions.len() as u32;
        if operands.iter().any(may_be_label) {
            scopes.unresolved(at);
        }
        let location = self.location;
        let end = self.tokens.get(self.at.saturating_sub(1)).map_or(start, |token| token.at + 1);
        function.instructions.push(Instruction {
            line,
            span: (start, end),
            location,
            guard,
            opcode: opcode.into(),
            operands,
        });
        Ok(())
    }

    fn operands(&mut self, scopes: &Scopes, close: char, depth: usize) -> Result<Vec<Operand>, ParseError> {
        let mut all = Vec::new();
        while !self.accept(close) {
            all.push(self.operand(scopes, depth + 1)?);
            if !self.accept(',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(all)
    }

    fn operand(&mut self, scopes: &Scopes, depth: usize) -> Result<Operand, ParseError> {
        if depth > MAX_DEPTH {
            return self.fail("operands nest too deeply");
        }
        let operand = match self.kind() {
            Kind::Punct('{') => {
                self.at += 1;
                Operand::Vector(self.operands(scopes, '}', depth)?)
            }
            Kind::Punct('(') => {
                self.at += 1;
                Operand::Group(self.operands(scopes, ')', depth)?)
            }
            Kind::Punct('[') => self.address(scopes, depth)?,
            Kind::Punct('!') => {
                self.at += 1;
                match self.name(scopes)? {
                    Operand::Reg(id) => Operand::Not(id),
                    _ => return self.fail("`!` needs a predicate register"),
                }
            }
            Kind::Punct('-') | Kind::Int(_) => Operand::Int(self.int()?),
            Kind::F32(bits) => {
                self.at += 1;
                Operand::F32(bits)
            }
            Kind::F64(bits) => {
                self.at += 1;
                Operand::F64(bits)
            }
            Kind::Word(_) => match self.name(scopes)? {
                Operand::Symbol(symbol, _) => Operand::Symbol(symbol, self.offset()?),
                operand => operand,
            },
            _ => return self.expected("an operand"),
        };
        if self.accept('|') {
            let second = self.operand(scopes, depth + 1)?;
            return Ok(Operand::Pair(Box::new(operand), Box::new(second)));
        }
        Ok(operand)
    }

    fn name(&mut self, scopes: &Scopes) -> Result<Operand, ParseError> {
        let word = self.word("a name")?;
        if word == "_" {
            return Ok(Operand::Sink);
        }
        if word == "WARP_SZ" {
            return Ok(Operand::Int(32));
        }
        Ok(match scopes.lookup(word) {
            Meaning::Register(id) => Operand::Reg(id),
            Meaning::Variable(id) => Operand::Symbol(Symbol::Variable(id), 0),
            Meaning::Vector(first, count) => {
                Operand::Vector((first..first + count).map(Operand::Reg).collect())
            }
            Meaning::Unknown if word.starts_with('%') => Operand::Special(word.into()),
            Meaning::Unknown => Operand::Symbol(Symbol::Named(word.into()), 0),
        })
    }

    pub(super) fn offset(&mut self) -> Result<i64, ParseError> {
        match self.kind() {
            Kind::Punct('+') => {
                self.at += 1;
                Ok(self.int()? as i64)
            }
            Kind::Punct('-') => Ok(self.int()? as i64),
            _ => Ok(0),
        }
    }

    /// Parses `[base+offset]` and `[base, {c0, c1}]`.
    fn address(&mut self, scopes: &Scopes, depth: usize) -> Result<Operand, ParseError> {
        self.expect('[')?;
        let (base, offset) = match self.kind() {
            Kind::Int(_) | Kind::Punct('-') => (Base::Absolute, self.int()? as i64),
            _ => {
                let base = match self.name(scopes)? {
                    Operand::Reg(id) => Base::Reg(id),
                    Operand::Symbol(symbol, _) => Base::Symbol(symbol),
                    _ => return self.fail("this cannot be the base of an address"),
                };
                (base, self.offset()?)
            }
        };
        let mut rest = Vec::new();
        while self.accept(',') {
            rest.push(self.operand(scopes, depth + 1)?);
        }
        self.expect(']')?;
        Ok(Operand::Address(base, offset, rest))
    }
}

fn may_be_label(operand: &Operand) -> bool {
    match operand {
        Operand::Symbol(Symbol::Named(_), 0) => true,
        Operand::Vector(inner) | Operand::Group(inner) => inner.iter().any(may_be_label),
        _ => false,
    }
}
