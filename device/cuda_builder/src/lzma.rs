//! Compresses what a library embeds.

use std::io::{self, Read, Write};

use lzma_rust2::{DICT_SIZE_MIN, LzmaOptions, LzmaReader, LzmaWriter};

/// Of xz's presets; CONTRIBUTING.md has what others give and take. From 6 on they differ only in how far back
/// they look, and all see a whole block.
const PRESET: u32 = 6;

/// `content` in the form that xz calls `alone`: properties, size of the dictionary, size of the content, and
/// one stream without end marker.
///
/// # Errors
/// 4 GiB and more.
pub fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut options = LzmaOptions::with_preset(PRESET);
    // Decompression allocates as much memory as the content needs.
    options.dict_size = size.max(DICT_SIZE_MIN);
    // Text is aligned to nothing: 1 % smaller.
    options.pb = 0;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(size.into()))?;
    writer.write_all(content)?;
    writer.finish()
}

/// The input of [`compress`], at most `most` + 1 bytes.
///
/// # Errors
/// A damaged stream.
pub fn decompress(packed: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::with_capacity(most);
    LzmaReader::new_mem_limit(packed, u32::MAX, None)?.take(most as u64 + 1).read_to_end(&mut whole)?;
    Ok(whole)
}
