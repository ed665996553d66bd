//! Decompression of the embedded modules.
use lzma_rust2::LzmaReader;
use std::io::{self, Read};

/// Maximum declared size, in bytes. This limit prevents that a damaged size requests all memory. A block of
/// modules has at most 2 MB. The machine code of one kernel has less than 1 MB.
const MOST: u64 = 64 << 20;

/// Memory in KiB that a decoder needs in addition to its dictionary.
const DECODER: u32 = 64;

/// Decompresses a stream in xz's format `alone`. Decompression needs twice the declared size in memory.
///
/// # Errors
/// Returns an error if the stream is truncated, or declares more than 64 MiB.
pub(crate) fn decompress(packed: &[u8]) -> io::Result<Vec<u8>> {
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
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
