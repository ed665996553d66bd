//! Splits a PTX text into its top-level items. The scanner knows PTX's brackets, strings and comments, but no
//! instruction.

use crate::Error;

/// The kind of a top-level item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of `.version`, `.target` and `.address_size`.
    Header,
    /// A `.file` directive with its number.
    File(u32),
    /// A debug section.
    Section,
    /// A kernel entry.
    Entry,
    /// A device function, or its declaration.
    Function,
    /// A global, constant or shared variable, or its declaration.
    Variable,
}

/// One item at the top level.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub kind: Kind,
    /// The symbol that the item defines or declares; empty for headers and sections.
    pub name: &'a str,
    /// The whole text of the item.
    pub text: &'a str,
    /// The position of the body's opening brace in `text`, or the length of `text` if there is no body.
    pub body: usize,
}

/// The top-level items of `text`, in order.
pub(crate) fn items(text: &str) -> Result<Vec<Item<'_>>, Error> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = skip_blank(text, at) {
        let rest = &text[start..];
        let error = |problem: &str| Error::Ptx {
            line: text[..start].lines().count() + 1,
            problem: format!("{problem}: `{}`", rest.lines().next().unwrap_or_default()),
        };
        let directive = identifiers(rest).next().unwrap_or_default();
        let item = match directive {
            "version" | "target" | "address_size" => line_item(rest, Kind::Header),
            "file" => {
                let number = rest.split_whitespace().nth(1).and_then(|n| n.parse().ok());
                line_item(rest, Kind::File(number.ok_or_else(|| error("a .file has a number"))?))
            }
            _ if !rest.starts_with('.') => return Err(error("expected a directive")),
            _ => block_item(rest, directive).ok_or_else(|| error("unfinished, or without a name"))?,
        };
        at = start + item.text.len();
        found.push(item);
    }
    Ok(found)
}

/// The identifiers in a PTX text, except for those in comments and strings. The signs `%` of registers and
/// `.` of directives are not part of an identifier.
pub(crate) fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let bytes = text.as_bytes();
        while at < bytes.len() {
            let length = skip_quoted(text, at);
            if length > 0 {
                at += length;
                continue;
            }
            let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'$';
            let word = bytes[at..].iter().take_while(|b| is_word(b)).count();
            at += word.max(1);
            if word > 0 && !bytes[at - word].is_ascii_digit() {
                return Some(&text[at - word..at]);
            }
        }
        None
    })
}

/// An item that ends with its line.
fn line_item(rest: &str, kind: Kind) -> Item<'_> {
    let text = rest.lines().next().unwrap_or_default();
    Item { kind, name: "", text, body: text.len() }
}

/// An item that ends with `;` or, if it has a body, with the brace that closes it.
fn block_item<'a>(rest: &'a str, directive: &str) -> Option<Item<'a>> {
    let head = &rest[..rest.find(['{', '(', ';', '='])?];
    let words = || identifiers(head);
    let kind = match directive {
        "section" => Kind::Section,
        _ if words().any(|w| w == "entry") => Kind::Entry,
        _ if words().any(|w| w == "func") => Kind::Function,
        _ => Kind::Variable,
    };
    let (mut depth, mut body, mut at) = (0u32, None, 0);
    let end = loop {
        at += skip_quoted(rest, at);
        match rest.as_bytes().get(at)? {
            b'{' => {
                depth += 1;
                body = body.or(Some(at));
            }
            b'}' => {
                depth = depth.checked_sub(1)?;
                // A variable's initialiser has braces too, but a semicolon ends the variable.
                if depth == 0 && kind != Kind::Variable {
                    break at + 1;
                }
            }
            b';' if depth == 0 => break at + 1,
            _ => {}
        }
        at += 1;
    };
    let text = &rest[..end];
    let name = match kind {
        Kind::Section => "",
        Kind::Variable => words().last()?,
        // The name stands before the last parameter list. A list of return values may precede the name.
        _ => {
            let signature = &text[..body.unwrap_or(end)];
            let after =
                signature.find(".entry").map(|p| p + 6).or_else(|| signature.find(".func").map(|p| p + 5))?;
            let mut tail = signature[after..].trim_start();
            if tail.starts_with('(') {
                tail = &tail[tail.find(')')? + 1..];
            }
            identifiers(tail).next()?
        }
    };
    Some(Item { kind, name, text, body: body.unwrap_or(end) })
}

/// The first position from `at` on that is neither blank nor part of a comment.
fn skip_blank(text: &str, mut at: usize) -> Option<usize> {
    loop {
        let rest = text.get(at..)?;
        let blank = rest.len() - rest.trim_start().len();
        at += blank;
        let comment = if text[at..].starts_with('/') { skip_quoted(text, at) } else { 0 };
        if blank + comment == 0 {
            return (at < text.len()).then_some(at);
        }
        at += comment;
    }
}

/// The length of the comment or string that begins at `at`; 0 if neither begins there.
fn skip_quoted(text: &str, at: usize) -> usize {
    let rest = text.as_bytes().get(at..).unwrap_or_default();
    let find = |needle: &[u8], from: usize| {
        rest[from.min(rest.len())..]
            .windows(needle.len())
            .position(|w| w == needle)
            .map(|p| p + from + needle.len())
    };
    match rest {
        [b'/', b'/', ..] => find(b"\n", 2).unwrap_or(rest.len()),
        [b'/', b'*', ..] => find(b"*/", 2).unwrap_or(rest.len()),
        [b'"', ..] => find(b"\"", 1).unwrap_or(rest.len()),
        _ => 0,
    }
}
