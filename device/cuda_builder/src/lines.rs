//! Removes the source lines from a module, and restores them.
//!
//! `.loc` and `.file` lines are half of a module's text, and only debuggers and the simulator use them. A
//! library embeds the PTX without these lines; a build with the simulator embeds both.

use std::fmt::Write;

use crate::Error;

const LOC: &str = "\t.loc\t";
const FILE: &str = "\t.file\t";

/// Splits `ptx` into two texts: the code without `.loc` and `.file` lines, and these lines. Each line of the
/// second text has the number of code lines since the previous `.loc` or `.file` (empty for 0), then the
/// arguments of the directive. A `.file` line begins with `f`.
///
/// The two texts compress better separately. [`join`] restores the module byte for byte.
pub fn split(ptx: &str) -> (String, String) {
    let (mut code, mut lines) = (String::with_capacity(ptx.len()), String::new());
    let mut before = 0u32;
    for line in ptx.split_inclusive('\n') {
        let (mark, arguments) = match (line.strip_prefix(LOC), line.strip_prefix(FILE)) {
            (Some(arguments), _) => (" ", arguments),
            (_, Some(arguments)) => (" f", arguments),
            _ => {
                code.push_str(line);
                before += 1;
                continue;
            }
        };
        if before > 0 {
            // Writing to a String cannot fail.
            let _ = write!(lines, "{before}");
        }
        lines.push_str(mark);
        lines.push_str(arguments);
        before = 0;
    }
    (code, lines)
}

/// Restores the module that [`split`] has split.
///
/// # Errors
/// Returns [`Error::Lines`] if `lines` is not an output of `split`, or belongs to longer code.
pub fn join(code: &str, lines: &str) -> Result<String, Error> {
    let mut ptx = String::with_capacity(code.len() + 2 * lines.len());
    let mut code = code.split_inclusive('\n');
    for (n, line) in lines.split_inclusive('\n').enumerate() {
        let error = |problem| Error::Lines { line: n + 1, problem };
        let (before, arguments) = line.split_once(' ').ok_or_else(|| error("no blank after the count"))?;
        let before = if before.is_empty() { Ok(0) } else { before.parse() };
        let before: u32 = before.map_err(|_| error("does not begin with a count"))?;
        for _ in 0..before {
            ptx.push_str(code.next().ok_or_else(|| error("lies after the end of the code"))?);
        }
        let (mark, arguments) = match arguments.strip_prefix('f') {
            Some(arguments) => (FILE, arguments),
            None => (LOC, arguments),
        };
        ptx.push_str(mark);
        ptx.push_str(arguments);
    }
    ptx.extend(code);
    Ok(ptx)
}
