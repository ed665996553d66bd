//! LZMA compression in xz's format `alone`: properties, dictionary size, content size, and one stream without
//! end marker.

use std::io::{self, Read};

use lzma_rust2::LzmaReader;

/// The source code of this module. A cache of compressed bytes can be keyed by it.
#[cfg(feature = "compress")]
pub const SOURCE: &str = include_str!("lzma.rs");

/// Maximum declared size, in bytes. This limit prevents that a damaged size requests all memory. A block of
/// modules has at most 2 MB. The machine code of one kernel has less than 1 MB.
const MOST: u64 = 64 << 20;

/// Memory in KiB that a decoder needs in addition to its dictionary.
const DECODER: u32 = 64;

/// The preset of xz. CONTRIBUTING.md compares the presets. From 6 on, presets differ only in the size of the
/// dictionary, and every dictionary holds a whole block.
#[cfg(feature = "compress")]
const PRESET: u32 = 6;

/// Compresses `content`.
///
/// # Errors
/// Returns an error if `content` has more than 64 MiB, which [`decompress`] would refuse.
#[cfg(feature = "compress")]
pub fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    use io::Write;
    use lzma_rust2::{DICT_SIZE_MIN, LzmaOptions, LzmaWriter};

    let size = u32::try_from(content.len()).ok().filter(|size| u64::from(*size) <= MOST);
    let size = size.ok_or_else(|| wrong("it has more than 64 MiB"))?;
    let mut options = LzmaOptions::with_preset(PRESET);
    // The dictionary is no larger than the content, because decompression allocates the dictionary.
    options.dict_size = size.max(DICT_SIZE_MIN);
    // Text is not aligned to words. This setting makes the result 1 % smaller.
    options.pb = 0;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(size.into()))?;
    writer.write_all(content)?;
    writer.finish()
}

/// Restores the input of `compress`. Decompression needs twice the declared size in memory.
///
/// # Errors
/// Returns an error if the stream is damaged, or declares more than 64 MiB.
pub fn decompress(packed: &[u8]) -> io::Result<Vec<u8>> {
    let size = packed.get(5..).and_then(<[u8]>::first_chunk).map(|size| u64::from_le_bytes(*size));
    let size = size.ok_or_else(|| wrong("its header is cut off"))?;
    if size > MOST {
        return Err(wrong("it declares more than 64 MiB"));
    }
    let mut reader = LzmaReader::new_mem_limit(packed, (size / 1024) as u32 + DECODER, None)?;
    // The format has no checksum. Instead, the decoder must be in its final state at the end.
    reader.set_relaxed_end_condition(false);
    let mut whole = vec![0; size as usize];
    reader.read_exact(&mut whole)?;
    Ok(whole)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
