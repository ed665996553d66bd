//! Inline frames out of the `.debug_info` that rustc's `line-tables-only` writes into PTX: DWARF 2, addresses as labels.

use std::collections::HashMap;

/// Bytes of a debug section; addresses are labels, noted by the offset where they stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub bytes: Vec<u8>,
    pub labels: HashMap<usize, Box<str>>,
}

/// A function inlined into another, or an outermost one: a range of labels and where it was called.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub name: Box<str>,
    pub low: Box<str>,
    pub high: Box<str>,
    /// File index, line and column of the call; zero for an outermost function.
    pub call: (u32, u32, u32),
    /// Index of the scope around it.
    pub parent: Option<usize>,
}

const TAG_INLINED: u64 = 0x1d;
const TAG_SUBPROGRAM: u64 = 0x2e;
const AT_NAME: u64 = 0x03;
const AT_LOW_PC: u64 = 0x11;
const AT_HIGH_PC: u64 = 0x12;
const AT_ORIGIN: u64 = 0x31;
const AT_CALL_COLUMN: u64 = 0x57;
const AT_CALL_FILE: u64 = 0x58;
const AT_CALL_LINE: u64 = 0x59;

/// Tag, whether entries have children, attributes with their forms.
type Abbreviations = HashMap<u64, (u64, bool, Vec<(u64, u64)>)>;

struct Reader<'s> {
    bytes: &'s [u8],
    at: usize,
}

impl<'s> Reader<'s> {
    fn take(&mut self, n: usize) -> Option<&'s [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(bytes)
    }

    fn uint(&mut self, n: usize) -> Option<u64> {
        Some(self.take(n)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn leb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.uint(1)?;
            value |= (byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'s str> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

fn abbreviations(section: &Section, offset: usize) -> Option<Abbreviations> {
    let mut reader = Reader { bytes: &section.bytes, at: offset };
    let mut all = HashMap::new();
    loop {
        let code = reader.leb()?;
        if code == 0 {
            return Some(all);
        }
        let (tag, children) = (reader.leb()?, reader.uint(1)? != 0);
        let mut attributes = Vec::new();
        loop {
            let pair = (reader.leb()?, reader.leb()?);
            if pair == (0, 0) {
                break;
            }
            attributes.push(pair);
        }
        all.insert(code, (tag, children, attributes));
    }
}

/// What an entry says, as far as scopes need it.
#[derive(Default)]
struct Entry<'s> {
    name: &'s str,
    low: Option<&'s str>,
    high: Option<&'s str>,
    origin: Option<usize>,
    call: (u32, u32, u32),
}

/// All scopes that have code. Empty where the sections are absent or of a kind not understood.
pub(crate) fn scopes(info: &Section, abbreviation_section: &Section) -> Vec<Scope> {
    let mut found = Found::default();
    let mut at = 0;
    while at + 11 <= info.bytes.len() {
        match found.unit(info, abbreviation_section, at) {
            Some(next) if next > at => at = next,
            _ => break,
        }
    }
    for (scope, origin) in found.scopes.iter_mut().zip(&found.origins) {
        if let Some(name) = origin.and_then(|origin| found.names.get(&origin)) {
            scope.name = name.clone();
        }
    }
    found.scopes
}

#[derive(Default)]
struct Found {
    scopes: Vec<Scope>,
    origins: Vec<Option<usize>>,
    /// Names by the offset of their entry.
    names: HashMap<usize, Box<str>>,
}

impl Found {
    /// Reads the unit at `start`; the offset of the next one.
    fn unit(&mut self, info: &Section, abbreviation_section: &Section, start: usize) -> Option<usize> {
        let mut reader = Reader { bytes: &info.bytes, at: start };
        let end = reader.uint(4)? as usize + start + 4;
        let (_version, offset, _address_size) = (reader.uint(2)?, reader.uint(4)? as usize, reader.uint(1)?);
        let abbreviations = abbreviations(abbreviation_section, offset)?;
        // For each open entry: the scope that its children lie in.
        let mut open: Vec<Option<usize>> = Vec::new();
        while reader.at < end.min(info.bytes.len()) {
            let here = reader.at;
            let code = reader.leb()?;
            if code == 0 {
                open.pop();
                continue;
            }
            let (tag, children, attributes) = abbreviations.get(&code)?;
            let entry = attributes_of(&mut reader, info, attributes, start)?;
            let mut scope = open.last().copied().flatten();
            if !entry.name.is_empty() {
                self.names.insert(here, entry.name.into());
            }
            if let (TAG_INLINED | TAG_SUBPROGRAM, Some(low), Some(high)) = (*tag, entry.low, entry.high) {
                let parent = if *tag == TAG_INLINED { scope } else { None };
                self.scopes.push(Scope {
                    name: entry.name.into(),
                    low: low.into(),
                    high: high.into(),
                    call: entry.call,
                    parent,
                });
                self.origins.push(entry.origin);
                scope = Some(self.scopes.len() - 1);
            }
            if *children {
                open.push(scope);
            }
        }
        Some(end)
    }
}

fn attributes_of<'s>(
    reader: &mut Reader<'s>,
    info: &'s Section,
    attributes: &[(u64, u64)],
    unit: usize,
) -> Option<Entry<'s>> {
    let mut entry = Entry::default();
    for &(attribute, form) in attributes {
        let at = reader.at;
        let mut value = 0;
        match form {
            0x01 => {
                reader.take(8)?;
                let label = info.labels.get(&at).map(|label| &**label);
                match attribute {
                    AT_LOW_PC => entry.low = label,
                    AT_HIGH_PC => entry.high = label,
                    _ => {}
                }
            }
            0x08 => {
                let text = reader.text()?;
                if attribute == AT_NAME {
                    entry.name = text;
                }
            }
            0x0b | 0x0c | 0x11 => value = reader.uint(1)?,
            0x05 | 0x12 => value = reader.uint(2)?,
            0x06 | 0x13 | 0x0e | 0x17 => value = reader.uint(4)?,
            0x07 | 0x14 => value = reader.uint(8)?,
            // DWARF 2: as wide as an address.
            0x10 => value = reader.uint(8)?,
            0x0d | 0x0f | 0x15 => value = reader.leb()?,
            0x19 => {}
            _ => return None,
        }
        match attribute {
            AT_ORIGIN => entry.origin = Some(value as usize + if form == 0x10 { 0 } else { unit }),
            AT_CALL_FILE => entry.call.0 = value as u32,
            AT_CALL_LINE => entry.call.1 = value as u32,
            AT_CALL_COLUMN => entry.call.2 = value as u32,
            _ => {}
        }
    }
    Some(entry)
}
