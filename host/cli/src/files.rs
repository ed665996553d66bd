//! Tensors in safetensors files.
use super::error::Error;
use ferroflash::DType;
use reference::Sequences;
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

/// A safetensors file, read.
pub(super) struct File<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> File<'a> {
    /// Reads a file.
    pub(super) fn read(path: &'a Path) -> Result<Self, Error> {
        let file = std::fs::read(path).map(|bytes| File { path, bytes });
        let file = file.map_err(|e| Error::Invalid(format!("{}: cannot be read: {e}", path.display())))?;
        file.tensors().map(drop)?;
        Ok(file)
    }

    /// What is wrong with it.
    pub(super) fn invalid(&self, what: impl std::fmt::Display) -> Error {
        Error::Invalid(format!("{}: {what}", self.path.display()))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, Error> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| {
            self.invalid(format_args!("is not a safetensors file ({e}); write one with tensors q, k, v"))
        })
    }

    /// Whether it has a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors().is_ok_and(|tensors| tensors.tensor(name).is_ok())
    }

    /// A tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let tensors = self.tensors()?;
        tensors.tensor(name).map_err(|_| {
            let mut names = tensors.names();
            names.sort_unstable();
            let names = names.join(", ");
            self.invalid(format_args!(
                "has no tensor `{name}`, only [{names}]; q, k and v are needed, or q, k_cache, v_cache and \
                 seqused_k; beside packed q, k, v also cu_seqlens_q and cu_seqlens_k"
            ))
        })
    }

    /// Numbers of 32 bits of the type `wanted`, and their shape. i32 are as good as u32.
    pub(super) fn words(&self, name: &str, wanted: Dtype) -> Result<(Vec<u32>, Vec<usize>), Error> {
        let tensor = self.tensor(name)?;
        let integers = [Dtype::I32, Dtype::U32];
        let got = tensor.dtype();
        if got != wanted && !(integers.contains(&got) && integers.contains(&wanted)) {
            return Err(self.invalid(format_args!("`{name}` is {got:?}; convert it to {wanted:?}")));
        }
        let words = tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok((words.collect(), tensor.shape().to_vec()))
    }
}

/// Where the packed sequences of a file begin, in so many rows of Q and of K.
pub(super) fn read_sequences(file: &File<'_>, rows: [usize; 2]) -> Result<Sequences, Error> {
    let read = |name: &str| {
        let (words, shape) = file.words(name, Dtype::I32)?;
        if shape.len() != 1 {
            return Err(file.invalid(format_args!("`{name}` has shape {shape:?}; one size is needed")));
        }
        Ok::<_, Error>(words.into_iter().map(|word| word as i32).collect::<Vec<_>>())
    };
    let starts = [read("cu_seqlens_q")?, read("cu_seqlens_k")?];
    let used = file.has("seqused_k").then(|| read("seqused_k")).transpose()?;
    Sequences::new(starts, used, rows).map_err(|e| file.invalid(e))
}

/// Whether the sequences of a file are packed.
pub(super) fn are_packed(file: &File<'_>) -> bool {
    file.has("cu_seqlens_q") || file.has("cu_seqlens_k")
}

/// Reads the tensors `q`, `k`, `v` of a file. Packed ones are one batch.
pub(super) fn read_qkv(file: &File<'_>) -> Result<[Stored; 3], Error> {
    let (invalid, is_packed) = (|what: String| file.invalid(what), are_packed(file));
    let read = |name: &str| {
        let tensor = file.tensor(name)?;
        let known = TYPES.into_iter().find(|(_, stored)| *stored == tensor.dtype());
        let (dtype, _) = known
            .ok_or_else(|| invalid(format!("`{name}` is {:?}; convert it to F16 or BF16", tensor.dtype())))?;
        let shape = match *tensor.shape() {
            [rows, heads, head_dim] if is_packed => [1, rows, heads, head_dim],
            [a, b, c, d] if !is_packed => [a, b, c, d],
            ref other => {
                let needed = if is_packed {
                    "three sizes are needed beside cu_seqlens_q: [rows of all sequences, heads, head_dim]"
                } else {
                    "four sizes are needed: [batch, seqlen, heads, head_dim], or with --layout bhsd [batch, \
                     heads, seqlen, head_dim]"
                };
                return Err(invalid(format!("`{name}` has shape {other:?}; {needed}")));
            }
        };
        let bits = tensor.data().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        Ok::<_, Error>(Stored { dtype, shape, bits })
    };
    Ok([read("q")?, read("k")?, read("v")?])
}

/// Writes `o`, shaped like the queries, and `lse`: f32, of a shape of its own.
pub(super) fn write_results(
    path: &Path,
    (dtype, shape): (DType, &[usize]),
    o: &[u16],
    lse: &[f32],
    lse_shape: &[usize],
) -> Result<(), Error> {
    let lse: Vec<u8> = lse.iter().flat_map(|x| x.to_le_bytes()).collect();
    write(path, &[("o", bytes(dtype, shape, o)?), ("lse", (Dtype::F32, lse_shape.to_vec(), lse))])
}

/// Writes `q`, `k` and `v`.
pub(super) fn write_qkv(path: &Path, [q, k, v]: &[Stored; 3]) -> Result<(), Error> {
    let bytes = |tensor: &Stored| bytes(tensor.dtype, &tensor.shape, &tensor.bits);
    write(path, &[("q", bytes(q)?), ("k", bytes(k)?), ("v", bytes(v)?)])
}

/// Type, shape and little-endian bytes.
type Bytes = (Dtype, Vec<usize>, Vec<u8>);

fn bytes(dtype: DType, shape: &[usize], bits: &[u16]) -> Result<Bytes, Error> {
    let known = TYPES.into_iter().find(|(known, _)| *known == dtype);
    let unknown = || Error::Invalid(format!("{} cannot be written to files", dtype.name()));
    let (_, dtype) = known.ok_or_else(unknown)?;
    Ok((dtype, shape.to_vec(), bits.iter().flat_map(|x| x.to_le_bytes()).collect()))
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
