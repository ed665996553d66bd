//! Compressed machine code that earlier runs have written. A file beside it has its digest, so damaged code
//! is made anew.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// The file with the digest of the file `packed`.
fn sum(packed: &Path) -> PathBuf {
    packed.with_extension("sum")
}

fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{:016x} {}\n", hasher.finish(), bytes.len())
}

/// Whether `packed` is as [`write()`] has written it.
pub fn is_whole(packed: &Path) -> bool {
    let sums = fs::read(packed).and_then(|bytes| Ok((digest(&bytes), fs::read_to_string(sum(packed))?)));
    sums.is_ok_and(|(now, then)| now == then)
}

/// Writes `bytes` to `packed`, and their digest beside it.
pub fn write(packed: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(packed, bytes)?;
    fs::write(sum(packed), digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_machine_code_is_not_kept() {
        let folder = std::env::temp_dir().join(format!("ferroflash-kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let packed = folder.join("one.cubin.lzma");
        assert!(!is_whole(&packed), "there is none");
        for damaged in [&b""[..], b"cod", b"coda", b"code "] {
            write(&packed, b"code").unwrap();
            assert!(is_whole(&packed));
            fs::write(&packed, damaged).unwrap();
            assert!(!is_whole(&packed), "{damaged:?}");
        }
        write(&packed, b"code").unwrap();
        fs::remove_file(sum(&packed)).unwrap();
        assert!(!is_whole(&packed), "an earlier version has written it");
        fs::remove_dir_all(folder).unwrap();
    }
}
