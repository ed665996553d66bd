//! Resolves names inside a function. Scopes in `{ }` contain registers, variables and labels.

use std::collections::HashMap;

use crate::ast::{Function, Operand, RegClass, RegRange, Symbol};

/// One scope in `{ }`.
#[derive(Default)]
pub(super) struct Scope {
    names: HashMap<Box<str>, Named>,
    labels: HashMap<Box<str>, u32>,
    /// Instructions of this scope whose operands may be labels.
    unresolved: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Named {
    Register(u32),
    /// The index of the first register, and the number of registers.
    Registers(u32, u32),
    Variable(u32),
    /// The index of the first register, and the number of registers, for each element.
    Vector(u32, u32),
}

/// The names of vector elements: by position, and as colours.
const ELEMENTS: [[&str; 2]; 4] = [["x", "r"], ["y", "g"], ["z", "b"], ["w", "a"]];

/// The meaning of an identifier at this point of the text.
pub(super) enum Meaning {
    Register(u32),
    Variable(u32),
    Vector(u32, u32),
    Unknown,
}

/// The stack of open scopes of one function.
pub(super) struct Scopes {
    stack: Vec<Scope>,
}

impl Scopes {
    pub fn new() -> Scopes {
        Scopes { stack: vec![Scope::default()] }
    }

    pub fn depth(&self) -> usize {
        self.stack.len()
    }

    pub fn push(&mut self) {
        self.stack.push(Scope::default());
    }

    fn top(&mut self) -> &mut Scope {
        if self.stack.is_empty() {
            self.stack.push(Scope::default());
        }
        let last = self.stack.len() - 1;
        &mut self.stack[last]
    }

    /// Closes the innermost scope: resolves its labels and passes the unresolved ones to the enclosing scope.
    pub fn pop(&mut self, function: &mut Function) {
        let Some(scope) = self.stack.pop() else { return };
        for &at in &scope.unresolved {
            if let Some(instruction) = function.instructions.get_mut(at as usize) {
                resolve(&mut instruction.operands, &scope.labels);
            }
        }
        if let Some(outer) = self.stack.last_mut() {
            outer.unresolved.extend(scope.unresolved);
        }
    }

    pub fn label(&mut self, name: &str, at: u32) -> bool {
        self.top().labels.insert(name.into(), at).is_none()
    }

    pub fn unresolved(&mut self, at: u32) {
        self.top().unresolved.push(at);
    }

    pub fn variable(&mut self, name: &str, index: u32) {
        self.top().names.insert(name.into(), Named::Variable(index));
    }

    pub fn registers(
        &mut self,
        name: &str,
        count: Option<u32>,
        class: RegClass,
        function: &mut Function,
    ) -> bool {
        let first = function.n_registers;
        let Some(end) = first.checked_add(count.unwrap_or(1)) else { return false };
        if end > 1 << 24 {
            return false;
        }
        function.n_registers = end;
        let range = RegRange {
            name: name.into(),
            first,
            count: count.unwrap_or(1),
            numbered: count.is_some(),
            class,
        };
        if range.count > 0 {
            function.registers.push(range);
        }
        let named = count.map_or(Named::Register(first), |count| Named::Registers(first, count));
        self.top().names.insert(name.into(), named);
        true
    }

    /// Declares vectors of `width` registers, as [`Self::registers`] does for single registers.
    pub fn vectors(
        &mut self,
        name: &str,
        count: Option<u32>,
        width: u32,
        class: RegClass,
        function: &mut Function,
    ) -> bool {
        if count.is_some_and(|count| count > 1 << 16) {
            return false;
        }
        (0..count.unwrap_or(1)).all(|number| {
            let name = count.map_or(name.to_string(), |_| format!("{name}{number}"));
            let first = function.n_registers;
            let mut elements = (first..).zip(&ELEMENTS[..width as usize]);
            let fits = elements.all(|(register, [position, colour])| {
                let alias = format!("{name}.{colour}").into();
                self.top().names.insert(alias, Named::Register(register));
                self.registers(&format!("{name}.{position}"), None, class, function)
            });
            self.top().names.insert(name.into(), Named::Vector(first, width));
            fits
        })
    }

    pub fn lookup(&self, name: &str) -> Meaning {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        for scope in self.stack.iter().rev() {
            match scope.names.get(name) {
                Some(&Named::Register(id)) => return Meaning::Register(id),
                Some(&Named::Variable(id)) => return Meaning::Variable(id),
                Some(&Named::Vector(first, count)) => return Meaning::Vector(first, count),
                _ => {}
            }
            // `%r1` may be register 1 of `%r<..>`, and `%r21` may be 21 of `%r<..>` or 1 of `%r2<..>`: this
            // loop tries every split.
            for split in 0..digits.len() {
                let (more, number) = digits.split_at(split);
                let range = scope.names.get(&name[..prefix.len() + more.len()]);
                if let Some(&Named::Registers(first, count)) = range
                    && let Ok(number) = number.parse::<u32>()
                    && number < count
                {
                    return Meaning::Register(first + number);
                }
            }
        }
        Meaning::Unknown
    }
}

fn resolve(operands: &mut [Operand], labels: &HashMap<Box<str>, u32>) {
    for operand in operands {
        match operand {
            Operand::Symbol(Symbol::Named(name), 0) => {
                if let Some(&at) = labels.get(name) {
                    *operand = Operand::Label(at);
                }
            }
            Operand::Vector(inner) | Operand::Group(inner) => resolve(inner, labels),
            _ => {}
        }
    }
}
