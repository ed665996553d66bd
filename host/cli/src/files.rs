//! Tensors in safetensors files.
use super::error::Error;
use ferroflash::DType;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::path::Path;

/// A tensor of four dimensions, as stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    /// Element type.
    pub dtype: DType,
    /// Sizes in the order of the file.
    pub shape: [usize; 4],
    /// Elements, contiguous.
    pub bits: Vec<u16>,
}

/// Element types, and what files call them.
const TYPES: [(DType, Dtype); 2] = [(DType::F16, Dtype::F16), (DType::Bf16, Dtype::BF16)];

/// Reads the tensors `q`, `k`, `v` of a file.
pub(super) fn read_qkv(path: &Path) -> Result<[Stored; 3], Error> {
    let invalid = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| invalid(format!("cannot be read: {e}")))?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| invalid(format!("is not a safetensors file ({e}); write one with tensors q, k, v")))?;
    let read = |name: &str| {
        let tensor = file.tensor(name).map_err(|_| {
            let mut names = file.names();
            names.sort_unstable();
            invalid(format!("has no tensor `{name}`, only [{}]; q, k and v are needed", names.join(", ")))
        })?;
        let known = TYPES.into_iter().find(|(_, stored)| *stored == tensor.dtype());
        let (dtype, _) = known
            .ok_or_else(|| invalid(format!("`{name}` is {:?}; convert it to F16 or BF16", tensor.dtype())))?;
        let shape = <[usize; 4]>::try_from(tensor.shape()).map_err(|_| {
            invalid(format!(
                "`{name}` has shape {:?}; four sizes are needed: [batch, seqlen, heads, head_dim], or with \
                 --layout bhsd [batch, heads, seqlen, head_dim]",
                tensor.shape()
            ))
        })?;
        let bits = tensor.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        Ok::<_, Error>(Stored { dtype, shape, bits })
    };
    Ok([read("q")?, read("k")?, read("v")?])
}

/// Writes `o`, shaped like the queries, and `lse`: f32, `[batch, heads, seqlen]`.
pub(super) fn write_results(
    path: &Path,
    o: &Stored,
    lse: &[f32],
    lse_shape: [usize; 3],
) -> Result<(), Error> {
    let lse: Vec<u8> = lse.iter().flat_map(|x| x.to_le_bytes()).collect();
    write(path, &[("o", o.bytes()?), ("lse", (Dtype::F32, lse_shape.to_vec(), lse))])
}

/// Writes `q`, `k` and `v`.
pub(super) fn write_qkv(path: &Path, [q, k, v]: &[Stored; 3]) -> Result<(), Error> {
    write(path, &[("q", q.bytes()?), ("k", k.bytes()?), ("v", v.bytes()?)])
}

/// Type, shape and little-endian bytes.
type Bytes = (Dtype, Vec<usize>, Vec<u8>);

impl Stored {
    fn bytes(&self) -> Result<Bytes, Error> {
        let known = TYPES.into_iter().find(|(dtype, _)| *dtype == self.dtype);
        let unknown = || Error::Invalid(format!("{} cannot be written to files", self.dtype.name()));
        let (_, dtype) = known.ok_or_else(unknown)?;
        Ok((dtype, self.shape.to_vec(), self.bits.iter().flat_map(|x| x.to_le_bytes()).collect()))
    }
}

fn write(path: &Path, tensors: &[(&str, Bytes)]) -> Result<(), Error> {
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect();
    let bytes = views.and_then(|views| safetensors::serialize(views, None));
    write_whole(path, &bytes.map_err(|e| cannot_be_written(path, &e))?)
}

/// Writes a file whole or not at all: under another name beside it first. What is no file, a pipe or a
/// device, is written to.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        if path.exists() && !path.is_file() {
            return std::fs::write(path, bytes);
        }
        // Behind a link it is the file that is replaced, not the link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut part = path.file_name().unwrap_or_default().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
        if written.is_err() {
            // The error to tell is the first.
            let _ = std::fs::remove_file(&part);
        }
        written
    };
    write().map_err(|e| cannot_be_written(path, &e))
}

fn cannot_be_written(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("{}: cannot be written: {why}", path.display()))
}

/// Refuses an output that is the input, by whatever name.
pub(super) fn differ(input: &Path, output: &Path) -> Result<(), Error> {
    let same = matches!((input.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same {
        let (input, output) = (input.display(), output.display());
        return Err(Error::Invalid(format!("--output {output} is the input {input}; name another file")));
    }
    Ok(())
}
