//! Compresses modules for a library to embed, and keeps what it compressed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process, thread};

use lzma_rust2::{DICT_SIZE_MIN, LzmaOptions, LzmaReader, LzmaWriter};

use crate::{Error, lines};

/// Of xz's presets; CONTRIBUTING.md has what others give and take. From 6 on they differ only in how far back
/// they look, and all see a whole module.
const PRESET: u32 = 6;

/// A module's parts, code and lines, by the names that they are kept and embedded under: `<symbol>.ptx` and
/// `<symbol>.lines`.
pub fn parts(symbol: &str, ptx: &str) -> [(String, String); 2] {
    let (code, lines) = lines::split(ptx);
    [(format!("{symbol}.ptx"), code), (format!("{symbol}.lines"), lines)]
}

/// Every one of `parts`, a name and its content, as [`compress`] makes it, on all cores.
///
/// They are kept in `folder`, a file for each name: what is there already and decompresses to the content is
/// not compressed again.
///
/// # Errors
/// [`Error::Io`] where `folder` cannot be written to.
pub fn compress_all(folder: &Path, parts: &[(String, String)]) -> Result<Vec<Vec<u8>>, Error> {
    // What another recipe made would be as right, but not as small.
    let mut recipe = DefaultHasher::new();
    include_str!("lzma.rs").hash(&mut recipe);
    let folder = folder.join(format!("{:016x}", recipe.finish()));
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut made = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, content)) = parts.get(n) else { return Ok(made) };
            made.push((n, kept(&folder.join(name).with_added_extension("lzma"), content.as_bytes())?));
        }
    };
    let mut made = thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(worker)).collect();
        let done = workers.into_iter().map(|worker| match worker.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect::<Result<Vec<_>, Error>>()
    })?
    .concat();
    made.sort_by_key(|(n, _)| *n);
    Ok(made.into_iter().map(|(_, packed)| packed).collect())
}

/// `content` in the form that xz calls `alone`: properties, size of the dictionary, size of the content, and
/// one stream without end marker.
///
/// # Errors
/// 4 GiB and more.
pub fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut options = LzmaOptions::with_preset(PRESET);
    // Who decompresses gets the memory that the content needs, and no more.
    options.dict_size = size.max(DICT_SIZE_MIN);
    // Text is aligned to nothing: 1 % smaller.
    options.pb = 0;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(size.into()))?;
    writer.write_all(content)?;
    writer.finish()
}

/// What `file` keeps, if that is `content`, or else `content` compressed, which it keeps from now on.
fn kept(file: &Path, content: &[u8]) -> Result<Vec<u8>, Error> {
    let holds = |packed: &Vec<u8>| {
        let mut whole = Vec::with_capacity(content.len());
        let reader = LzmaReader::new_mem_limit(packed.as_slice(), u32::MAX, None);
        reader.and_then(|reader| reader.take(content.len() as u64 + 1).read_to_end(&mut whole)).is_ok()
            && whole == content
    };
    if let Some(packed) = fs::read(file).ok().filter(holds) {
        return Ok(packed);
    }
    let packed = compress(content).map_err(Error::io("compress", file))?;
    // Another process may want the same file at once.
    let part = file.with_added_extension(process::id().to_string());
    fs::write(&part, &packed).map_err(Error::io("write", &part))?;
    fs::rename(&part, file).map_err(Error::io("write", file))?;
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_asked_for() {
        let folder = std::env::temp_dir().join(format!("cuda-builder-lzma-{}", process::id()));
        let asked = |content: &str| {
            let parts = [("a".to_owned(), content.to_owned()), ("b".to_owned(), String::new())];
            let packed = compress_all(&folder, &parts).expect("compressed");
            for ((name, content), packed) in parts.iter().zip(packed) {
                let mut whole = String::new();
                let mut reader =
                    LzmaReader::new_mem_limit(packed.as_slice(), u32::MAX, None).expect("header");
                reader.read_to_string(&mut whole).expect("whole");
                assert_eq!(whole, *content, "{name}");
            }
        };
        for content in ["one", "one", "two", "two and more"] {
            asked(content);
        }
        // Damage in the folder is nobody's damage.
        for recipe in fs::read_dir(&folder).expect("made").flatten() {
            fs::write(recipe.path().join("a.lzma"), [0; 20]).expect("written");
        }
        asked("two and more");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
