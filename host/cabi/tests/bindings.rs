//! Generates from the library's structs the structs of `ferroflash.h`, their INIT macros, and
//! `python/ferroflash/_bindings.py`. `BLESS=1 cargo test -p ferroflash-cabi --test bindings` writes both.
use ferroflash_c::{AppendArgs, Args, AttentionArgs, BackwardArgs, Field, MergeArgs, PlanInfo, StateArgs};
use std::fmt::Write;
use std::path::Path;

/// A struct: its name in C, its fields and its Python name.
type Struct = (&'static str, &'static [Field], &'static str);

/// All structs. A struct follows the structs that it points to.
const STRUCTS: [Struct; 6] = [
    of::<AttentionArgs>("Attention"),
    of::<PlanInfo>("PlanInfo"),
    of::<BackwardArgs>("Backward"),
    of::<AppendArgs>("Append"),
    of::<StateArgs>("State"),
    of::<MergeArgs>("Merge"),
];

const fn of<A: Args>(python: &'static str) -> Struct {
    (A::NAME, A::FIELDS, python)
}

/// Longest line of the header.
const COLUMNS: usize = 110;

/// Returns the lines of a comment.
fn comment(docs: &[String]) -> String {
    let lines: Vec<_> = docs.iter().map(|line| format!("     *{line}").trim_end().to_owned()).collect();
    format!("    /* {} */\n", lines.join("\n").trim_start_matches("     * "))
}

/// Returns the fields of a struct in C.
fn fields((name, fields, _): &Struct) -> String {
    let mut text = String::new();
    for Field { name: field, c, count, docs, .. } in *fields {
        let space = if c.ends_with('*') { "" } else { " " };
        let array = if *count == 0 { String::new() } else { format!("[{count}]") };
        let line = format!("    {c}{space}{field}{array};");
        let size = format!("sizeof(ferroflash_{name}_t); FERROFLASH_{}_INIT sets it", name.to_uppercase());
        let docs: Vec<_> = match *field {
            "size" => vec![format!(" {size}")],
            _ => docs.iter().map(|line| (*line).to_owned()).collect(),
        };
        text += &match &docs[..] {
            [] => format!("{line}\n"),
            [short] if line.len() + short.len() + 7 <= COLUMNS && !short.ends_with('.') => {
                format!("{line} /* {} */\n", short.trim())
            }
            long => format!("{}{line}\n", comment(long)),
        };
    }
    text
}

/// Returns the macro that initialises a struct. It names every field, so no compiler of C or C++ warns of a
/// missing field.
fn init((name, fields, _): &Struct) -> String {
    let value = |Field { name: field, c, count, .. }: &Field| match (*field, *count) {
        ("size", _) => format!("sizeof(ferroflash_{name}_t)"),
        ("state_size", _) => "sizeof(ferroflash_state_t)".to_owned(),
        (_, 0) if c.ends_with('*') => "NULL".to_owned(),
        (_, 0) => "0".to_owned(),
        (_, count) => format!("{{{}}}", vec!["0"; count].join(", ")),
    };
    let mut lines = vec![String::new()];
    for value in fields.iter().map(value) {
        if lines.last().is_some_and(|line| line.len() + value.len() + 2 > COLUMNS - 8) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            *line += &format!(" {value},");
        }
    }
    let values = lines.join(" \\\n   ");
    format!("#define FERROFLASH_{}_INIT {{ \\\n   {} }}\n", name.to_uppercase(), values.trim_end_matches(','))
}

/// Replaces what stands between `begin` and the next `end`.
fn replace(text: &str, begin: &str, end: &str, with: &str) -> String {
    let (before, rest) = text.split_once(begin).unwrap_or_else(|| panic!("the header lacks {begin}"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("the header lacks {end}"));
    format!("{before}{begin}{with}{end}{after}")
}

/// Returns the header with the structs' fields and macros. The rest of the header is written by hand.
fn header(old: &str) -> String {
    let mut text = old.to_owned();
    for of in &STRUCTS {
        let name = of.0;
        let (begin, end) =
            (format!("typedef struct ferroflash_{name} {{\n"), format!("}} ferroflash_{name}_t;"));
        text = replace(&text, &begin, &end, &fields(of));
    }
    let macros = STRUCTS.iter().filter(|(_, fields, _)| fields[0].name == "size").map(init);
    let begin = "/* These macros name every field, so no C or C++ compiler warns of a missing field. */\n";
    replace(&text, begin, "/* Writes the keys", &(macros.collect::<String>() + "\n"))
}

/// Returns the type of `ctypes` for a type of C.
fn ctype(c: &str) -> &str {
    match c {
        "const char *" => "c_char_p",
        "void" => "None",
        "float" => "c_float",
        "ferroflash_status_t" => "c_int",
        _ if c.contains('*') => "c_void_p",
        _ => c.strip_suffix("_t").map_or(c, |c| match c {
            "uint32" => "c_uint32",
            "uint64" => "c_uint64",
            "int32" => "c_int32",
            "int64" => "c_int64",
            "size" => "c_size_t",
            other => panic!("ctypes has no {other}"),
        }),
    }
}

/// Returns the Python module: constants and functions of the header, and the structs.
fn python(header: &str) -> String {
    let mut text = "\"\"\"The constants, structs and functions of ferroflash.h, for ctypes.\n\nGenerated: \
                    `BLESS=1 cargo test -p ferroflash-cabi --test bindings` writes this file.\n\"\"\"\n\
                    from ctypes import Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, \
                    c_uint32, c_uint64, c_void_p\n\n"
        .to_owned();
    for part in header.split("FERROFLASH_").skip(1) {
        let end = part.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        let value = rest.strip_prefix(" = ").or(rest.strip_prefix(' ').filter(|_| name == "ABI_VERSION"));
        let digits: String = value.unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
        if !digits.is_empty() {
            writeln!(text, "{name} = {digits}").expect("a string");
        }
    }
    for (name, fields, class) in STRUCTS {
        write!(
            text,
            "\n\nclass {class}(Structure):\n    \"\"\"ferroflash_{name}_t\"\"\"\n\n    _fields_ = [\n"
        )
        .expect("a string");
        for Field { name, c, count, .. } in fields {
            let array = if *count == 0 { String::new() } else { format!(" * {count}") };
            writeln!(text, "        (\"{name}\", {}{array}),", ctype(c)).expect("a string");
        }
        text += "    ]\n";
    }
    text += "\n\n# The type of the result and of the arguments of each function.\nFUNCTIONS = {\n";
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, code)| code)).collect();
    for declaration in code.split(';').map(str::trim).filter(|text| text.ends_with(')')) {
        let Some((before, arguments)) = declaration.split_once('(') else { continue };
        let Some((result, name)) = before.rsplit_once("ferroflash_") else { continue };
        let arguments = arguments.trim_end_matches(')').split(',').map(|argument| {
            let argument = argument.trim();
            if argument.contains('*') { "c_void_p" } else { ctype(argument.split(' ').next().unwrap_or("")) }
        });
        let arguments: Vec<_> = arguments.filter(|argument| *argument != "None").collect();
        let result = ctype(result.trim());
        writeln!(text, "    \"ferroflash_{name}\": ({result}, [{}]),", arguments.join(", "))
            .expect("a string");
    }
    text + "}\n"
}

#[test]
fn the_files_have_the_librarys_structs() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths =
        ["include/ferroflash.h", "../../python/ferroflash/_bindings.py"].map(|path| package.join(path));
    let [old_header, old_python] =
        paths.each_ref().map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let header = header(&old_header);
    let python = python(&header);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(package.join("../../python/ferroflash")).expect("a folder");
        std::fs::write(&paths[0], &header).expect("written");
        std::fs::write(&paths[1], &python).expect("written");
        return;
    }
    let bless = "BLESS=1 cargo test -p ferroflash-cabi --test bindings";
    assert!(old_header == header && old_python == python, "the files are not the library's: {bless}");
}
