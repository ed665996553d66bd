//! LZMA compression of embedded kernels.

use std::io::{self, Read, Write};

use lzma_rust2::{DICT_SIZE_MIN, LzmaOptions, LzmaReader, LzmaWriter};

/// The preset of xz. CONTRIBUTING.md compares the presets. From 6 on, presets differ only in the size of the
/// dictionary, and every dictionary holds a whole block.
const PRESET: u32 = 6;

/// Compresses `content` into xz's format `alone`: properties, dictionary size, content size, and one stream
/// without end marker.
///
/// # Errors
/// Returns an error if `content` has 4 GiB or more.
pub fn compress(content: &[u8]) -> io::Result<Vec<u8>> {
    let size = u32::try_from(content.len()).map_err(io::Error::other)?;
    let mut options = LzmaOptions::with_preset(PRESET);
    // The dictionary is no larger than the content, because decompression allocates the dictionary.
    options.dict_size = size.max(DICT_SIZE_MIN);
    // Text is not aligned to words. This setting makes the result 1 % smaller.
    options.pb = 0;
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(size.into()))?;
    writer.write_all(content)?;
    writer.finish()
}

/// Restores the input of [`compress`], or its first `most` + 1 bytes if it is longer.
///
/// # Errors
/// Returns an error if the stream is damaged.
pub fn decompress(packed: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::with_capacity(most);
    LzmaReader::new_mem_limit(packed, u32::MAX, None)?.take(most as u64 + 1).read_to_end(&mut whole)?;
    Ok(whole)
}
