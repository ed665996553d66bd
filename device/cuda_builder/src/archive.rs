//! Archives of compressed PTX modules, for libraries to embed. Similar modules are compressed together.
//!
//! Neighbours in a table of kernels differ by a type or a mask. A kernel that is compressed after its
//! neighbour takes a tenth of the bytes that it takes in its own archive. CONTRIBUTING.md has the figures.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process, thread};

use compression::{lzma, numbers};

use crate::{Error, lines};

/// Name of the archive of modules without source lines ([`Archive::write_modules`]).
pub const CODE: &str = "code";
/// Name of the archive of source lines ([`Archive::write_modules`]).
pub const LINES: &str = "lines";

/// Largest number of bytes of a block with several texts. To read one text, the host decompresses the whole
/// block of the text: 2 MB take some 4 ms.
const BLOCK: usize = 2 << 20;

/// Blocks of compressed texts.
#[derive(Debug)]
pub struct Archive {
    /// The output of [`lzma::compress`] for each block.
    pub blocks: Vec<Vec<u8>>,
    /// The place of each text in the blocks, in the order of the texts.
    pub places: Vec<Place>,
}

/// The place of a text in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The text's name.
    pub name: String,
    /// The index of the block that contains the text.
    pub block: usize,
    /// The index of the text's first byte in the block's content.
    pub from: usize,
    /// The number of the text's bytes.
    pub len: usize,
}

/// The concatenated texts of a block.
struct Content<'t> {
    name: &'t str,
    text: String,
}

impl Archive {
    /// Compresses `texts`, each with its name, on all cores. A block is full at 2 MB, and its texts belong to
    /// one `family`. A build that omits a family can therefore omit the family's blocks.
    ///
    /// `folder` caches the blocks, in files named after `what` and the block's first text. `of` does not
    /// compress a block again if the cached block decompresses to the same content.
    ///
    /// `of` compresses any texts. [`Archive::of_code`] is for the code of modules.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if `folder` is not writable.
    pub fn of(
        folder: &Path,
        what: &str,
        texts: &[(&str, String)],
        family: fn(&str) -> &str,
    ) -> Result<Self, Error> {
        let (contents, places) = arranged(texts, family);
        // A block that was compressed with another recipe would be correct, but larger.
        let mut recipe = DefaultHasher::new();
        lzma::SOURCE.hash(&mut recipe);
        let folder = folder.join(format!("{:016x}", recipe.finish()));
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let file = |content: &Content<'_>| folder.join(format!("{}.{what}.lzma", content.name));
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut made = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(content) = contents.get(n) else { return Ok(made) };
                made.push((n, kept(&file(content), content.text.as_bytes())?));
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
        Ok(Self { blocks: made.into_iter().map(|(_, block)| block).collect(), places })
    }

    /// Compresses code of modules without source lines, each with its symbol. Its numbers become differences
    /// ([`numbers::encode`]), and each [`Place`] is a place in the encoded texts. The folder `kept` caches
    /// compressed blocks, as in [`Archive::of`]. [`read_code`] restores the code.
    ///
    /// # Errors
    /// The errors of [`Archive::of`].
    pub fn of_code(kept: &Path, code: &[(&str, String)], family: fn(&str) -> &str) -> Result<Self, Error> {
        let encoded: Vec<_> = code.iter().map(|(symbol, code)| (*symbol, numbers::encode(code))).collect();
        Self::of(kept, CODE, &encoded, family)
    }

    /// Writes two archives into `folder`: the `modules` without source lines, each with its symbol, and the
    /// source lines. The folder `kept` caches compressed blocks, as in [`Archive::of`].
    ///
    /// # Errors
    /// The errors of [`Archive::of`] and [`Archive::write`].
    pub fn write_modules(
        modules: &[(&str, String)],
        family: fn(&str) -> &str,
        kept: &Path,
        folder: &Path,
    ) -> Result<(), Error> {
        let (code, lines): (Vec<_>, Vec<_>) = modules
            .iter()
            .map(|(symbol, ptx)| {
                let (code, lines) = lines::split(ptx);
                ((*symbol, code), (*symbol, lines))
            })
            .unzip();
        Self::of_code(kept, &code, family)?.write(folder, CODE)?;
        // Differences would make the source lines larger.
        Self::of(kept, LINES, &lines, family)?.write(folder, LINES)
    }

    /// Writes the blocks and an index of the texts into `folder`, below the name `what`.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a file cannot be written.
    pub fn write(&self, folder: &Path, what: &str) -> Result<(), Error> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        for (number, block) in self.blocks.iter().enumerate() {
            let file = block_file(folder, what, number);
            fs::write(&file, block).map_err(Error::io("write", &file))?;
        }
        let line = |Place { name, block, from, len }: &Place| format!("{name} {block} {from} {len}\n");
        let file = index_file(folder, what);
        fs::write(&file, self.places.iter().map(line).collect::<String>()).map_err(Error::io("write", &file))
    }

    /// Number of bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }
}

/// The places of the texts in an archive that [`Archive::write`] wrote.
///
/// # Errors
/// Returns [`Error::Io`] if the index is missing or malformed.
pub fn index(folder: &Path, what: &str) -> Result<Vec<Place>, Error> {
    let file = index_file(folder, what);
    let text = fs::read_to_string(&file).map_err(Error::io("read", &file))?;
    let place = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let place = Place { name, block: number()?, from: number()?, len: number()? };
        place.from.checked_add(place.len).map(|_| place)
    };
    let odd = || Error::io("read", &file)(io::Error::other("a line is not `name block from len`"));
    text.lines().map(|line| place(line).ok_or_else(odd)).collect()
}

/// The code of the modules that [`Archive::write_modules`] wrote, each with its symbol.
///
/// # Errors
/// Returns [`Error::Io`] if the archive is incomplete or damaged.
pub fn read_code(folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let damaged = |error| Error::io("decode", index_file(folder, CODE))(io::Error::other(error));
    let code = |(symbol, text): (String, String)| Ok((symbol, numbers::decode(&text).map_err(damaged)?));
    read(folder, CODE)?.into_iter().map(code).collect()
}

/// The modules that [`Archive::write_modules`] wrote, with their source lines, each with its symbol.
///
/// # Errors
/// Returns [`Error::Io`] or [`Error::Lines`] if the archive is incomplete or damaged.
pub fn read_modules(folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let (code, lines) = (read_code(folder)?, read(folder, LINES)?);
    let joined = code.into_iter().zip(lines).map(|((symbol, code), (name, lines))| {
        let differ = || Error::io("read", folder)(io::Error::other(format!("{name} follows {symbol}")));
        if symbol != name { Err(differ()) } else { Ok((symbol, lines::join(&code, &lines)?)) }
    });
    joined.collect()
}

/// The texts of an archive that [`Archive::write`] wrote, each with its name.
///
/// # Errors
/// Returns [`Error::Io`] if the archive is incomplete or damaged.
pub fn read(folder: &Path, what: &str) -> Result<Vec<(String, String)>, Error> {
    let mut texts = Vec::new();
    let mut last: Option<(usize, Vec<u8>)> = None;
    for Place { name, block, from, len } in index(folder, what)? {
        let file = block_file(folder, what, block);
        let damaged = |why| Error::io("read", &file)(io::Error::new(io::ErrorKind::InvalidData, why));
        let content = match last.take().filter(|(number, _)| *number == block) {
            Some((_, content)) => content,
            None => {
                let packed = fs::read(&file).map_err(Error::io("read", &file))?;
                lzma::decompress(&packed).map_err(Error::io("decompress", &file))?
            }
        };
        let text = content.get(from..from.saturating_add(len)).ok_or_else(|| damaged("it is cut off"))?;
        texts.push((name, String::from_utf8(text.to_vec()).map_err(|_| damaged("it is no text"))?));
        last = Some((block, content));
    }
    Ok(texts)
}

/// The files of the two archives that [`Archive::write_modules`] wrote.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for what in [CODE, LINES] {
        files.push(index_file(folder, what));
        let blocks = index(folder, what)?.iter().map(|place| place.block + 1).max().unwrap_or(0);
        files.extend((0..blocks).map(|number| block_file(folder, what, number)));
    }
    Ok(files)
}

/// The path of a block's file.
pub fn block_file(folder: &Path, what: &str, number: usize) -> PathBuf {
    folder.join(format!("{what}-{number}.lzma"))
}

fn index_file(folder: &Path, what: &str) -> PathBuf {
    folder.join(format!("{what}.index"))
}

fn arranged<'t>(texts: &'t [(&'t str, String)], family: fn(&str) -> &str) -> (Vec<Content<'t>>, Vec<Place>) {
    let mut contents: Vec<Content<'t>> = Vec::new();
    let mut places = Vec::new();
    for (name, text) in texts {
        let joins = |last: &&mut Content<'_>| {
            last.text.len() + text.len() <= BLOCK && family(last.name) == family(name)
        };
        let from = match contents.last_mut().filter(joins) {
            Some(last) => {
                let from = last.text.len();
                last.text.push_str(text);
                from
            }
            None => {
                contents.push(Content { name, text: text.clone() });
                0
            }
        };
        places.push(Place { name: (*name).to_owned(), block: contents.len() - 1, from, len: text.len() });
    }
    (contents, places)
}

/// Returns the cached output in `file` if it belongs to `content`. Otherwise, compresses `content` and caches
/// the output in `file`.
fn kept(file: &Path, content: &[u8]) -> Result<Vec<u8>, Error> {
    let holds = |packed: &Vec<u8>| lzma::decompress(packed).is_ok_and(|whole| whole == content);
    if let Some(packed) = fs::read(file).ok().filter(holds) {
        return Ok(packed);
    }
    let packed = lzma::compress(content).map_err(Error::io("compress", file))?;
    // Another process may write the same file concurrently.
    let part = file.with_added_extension(process::id().to_string());
    fs::write(&part, &packed).map_err(Error::io("write", &part))?;
    fs::rename(&part, file).map_err(Error::io("write", file))?;
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(symbol: &str) -> &str {
        &symbol[..1]
    }

    #[test]
    fn what_is_kept_is_what_was_asked_for() {
        let folder = std::env::temp_dir().join(format!("cuda-builder-archive-{}", process::id()));
        let asked = |texts: &[(&str, String)], blocks: usize| {
            let archive = Archive::of(&folder, "code", texts, letter).expect("compressed");
            archive.write(&folder, "code").expect("written");
            let places = index(&folder, "code").expect("an index");
            assert_eq!((&places, archive.blocks.len()), (&archive.places, blocks));
            let read = read(&folder, "code").expect("whole");
            assert!(
                read.iter().map(|(name, text)| (name.as_str(), text)).eq(texts.iter().map(|(n, t)| (*n, t)))
            );
        };
        let full = || "x".repeat(BLOCK - 3);
        for one in ["one", "one", "two", "two and more"] {
            asked(&[("a_1", one.to_owned()), ("a_2", String::new()), ("b_1", one.to_owned())], 2);
        }
        asked(&[("a_1", "one".to_owned()), ("a_2", full()), ("a_3", "y".to_owned())], 2);
        // A damaged cache does no harm.
        for recipe in fs::read_dir(&folder).expect("made").flatten().filter(|entry| entry.path().is_dir()) {
            fs::write(recipe.path().join("a_1.code.lzma"), [0; 20]).expect("written");
        }
        asked(&[("a_1", "one".to_owned()), ("a_2", full()), ("a_3", "y".to_owned())], 2);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn code_and_lines_of_modules_are_restored() {
        let folder = std::env::temp_dir().join(format!("cuda-builder-modules-{}", process::id()));
        let module =
            |add: &str| format!("\t.file\t1 \"a.rs\"\n\tadd.s32 %r{add}, %r3, 007;\n\t.loc\t1 2 3\n%r+3\r\n");
        let modules = [("a_1", module("1")), ("a_2", module("99999999999")), ("b_1", String::new())];
        Archive::write_modules(&modules, letter, &folder.join("kept"), &folder).expect("written");
        let (code, lines) = (read_code(&folder).expect("whole"), read(&folder, LINES).expect("whole"));
        assert_eq!((code.len(), lines.len()), (modules.len(), modules.len()));
        for (((symbol, ptx), (name, code)), (_, lines)) in modules.iter().zip(&code).zip(&lines) {
            assert_eq!((*symbol, ptx), (name.as_str(), &lines::join(code, lines).expect("fits")));
        }
        let whole = read_modules(&folder).expect("whole");
        assert!(
            whole.iter().map(|(symbol, ptx)| (symbol.as_str(), ptx)).eq(modules.iter().map(|(s, p)| (*s, p)))
        );
        fs::remove_dir_all(&folder).expect("removed");
    }
}
