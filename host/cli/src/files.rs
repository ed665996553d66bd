//! Tensors in safetensors files.
use super::error::Error;
use super::results::Results;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::RowOutputs;
use reference::Slopes;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensors};
use std::io::Read;
use std::path::Path;

/// A tensor of four dimensions, as a file stores it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stored {
    /// Element type.
    pub dtype: DType,
    /// The sizes, in the order of the file.
    pub shape: [usize; 4],
    /// Elements, contiguous.
    pub bits: Vec<u16>,
}

/// A tensor of any sizes. No size is 0.
pub(super) struct Elements {
    /// Element type.
    pub dtype: DType,
    /// The sizes, in the order of the file.
    pub shape: Vec<usize>,
    /// Elements, contiguous, little-endian.
    pub bytes: Vec<u8>,
}

impl Elements {
    /// Returns the elements, of 16 bits or of 8 bits, as 16-bit words.
    pub(super) fn halves(&self) -> Vec<u16> {
        if self.dtype.bytes() == 1 {
            return self.bytes.iter().map(|byte| u16::from(*byte)).collect();
        }
        self.bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
    }
}

/// Element types, and their names in files.
const TYPES: [(DType, Dtype); 6] = [
    (DType::F16, Dtype::F16),
    (DType::Bf16, Dtype::BF16),
    (DType::E4m3, Dtype::F8_E4M3),
    (DType::Int8, Dtype::I8),
    (DType::E4m3Scaled, Dtype::U8),
    (DType::F32, Dtype::F32),
];
/// Types of queries of other requests.
pub(super) const HALVES: &[DType] = &[DType::F16, DType::Bf16];
/// Types of queries, keys and values in tensors of equal lengths.
const TENSORS: &[DType] = &[DType::F16, DType::Bf16, DType::E4m3];
/// Types of caches, and of latent caches.
pub(super) const CACHES: &[DType] = &[DType::F16, DType::Bf16, DType::E4m3, DType::Int8];
pub(super) const LATENTS: &[DType] = &[DType::F16, DType::Bf16, DType::E4m3, DType::E4m3Scaled];

/// The content of a safetensors file.
pub(super) struct File<'a> {
    path: &'a Path,
    bytes: Vec<u8>,
}

impl<'a> File<'a> {
    /// Reads a file.
    pub(super) fn read(path: &'a Path) -> Result<Self, Error> {
        let bytes =
            read(path).map_err(|e| Error::Invalid(format!("{}: cannot be read: {e}", path.display())))?;
        let file = File { path, bytes };
        file.tensors().map(drop)?;
        Ok(file)
    }

    /// Returns an error of this file.
    pub(super) fn invalid(&self, what: impl std::fmt::Display) -> Error {
        Error::Invalid(format!("{}: {what}", self.path.display()))
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, Error> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| {
            self.invalid(format_args!(
                "is not a safetensors file ({e}); `ferroflash run --help` shows how to write one"
            ))
        })
    }

    /// Returns whether the file has a tensor with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors().is_ok_and(|tensors| tensors.tensor(name).is_ok())
    }

    /// Refuses a tensor with any other name, because files with `kind` would ignore it. Tensors with the
    /// names of results are permitted.
    pub(super) fn only(&self, kind: &str, names: &[&str]) -> Result<(), Error> {
        let tensors = self.tensors()?;
        let is_row_output =
            |name: &str| RowOutputs::<()>::default().named().any(|(output, ())| output == name);
        let is_output = |name: &str| ["o", "max_logits_head"].contains(&name) || is_row_output(name);
        let is_known = |name: &&str| names.contains(name) || is_output(name);
        let Some(name) = tensors.names().into_iter().filter(|name| !is_known(name)).min() else {
            return Ok(());
        };
        let right = match name {
            "cache_seqlens" if names.contains(&"seqused_k") => "name it `seqused_k`".to_owned(),
            _ => format!("remove it, or name it as one of [{}]", names.join(", ")),
        };
        let what = format_args!("has a tensor `{name}` that a file with {kind} does not use; {right}");
        Err(self.invalid(what))
    }

    /// Returns a tensor.
    pub(super) fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let tensors = self.tensors()?;
        tensors.tensor(name).map_err(|_| {
            let mut names = tensors.names();
            names.sort_unstable();
            let names = names.join(", ");
            self.invalid(format_args!(
                "has no tensor `{name}`, only [{names}]; a file needs q, k and v; or q, k_cache, v_cache and \
                 seqused_k; varlen q, k, v also need cu_seqlens_q and cu_seqlens_k"
            ))
        })
    }

    /// Returns a tensor with one of these types.
    pub(super) fn elements(&self, name: &str, types: &[DType]) -> Result<Elements, Error> {
        let tensor = self.tensor(name)?;
        let known =
            TYPES.into_iter().find(|(ours, theirs)| *theirs == tensor.dtype() && types.contains(ours));
        let Some((dtype, _)) = known else {
            let taken = TYPES.iter().filter(|(ours, _)| types.contains(ours));
            let taken = taken.map(|(_, theirs)| format!("{theirs:?}")).collect::<Vec<_>>().join(" or ");
            let other = tensor.dtype();
            return Err(self.invalid(format_args!("`{name}` is {other:?}; convert it to {taken}")));
        };
        let shape = tensor.shape().to_vec();
        if shape.contains(&0) {
            return Err(
                self.invalid(format_args!("`{name}` has shape {shape:?}; each size must be 1 or more"))
            );
        }
        Ok(Elements { dtype, shape, bytes: tensor.data().to_vec() })
    }

    /// Returns the elements of a u8 tensor, and its shape.
    pub(super) fn bytes(&self, name: &str) -> Result<(Vec<u8>, Vec<usize>), Error> {
        let tensor = self.tensor(name)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        if dtype != Dtype::U8 {
            return Err(self.invalid(format_args!("`{name}` is {dtype:?}; convert it to U8")));
        }
        if shape.contains(&0) {
            return Err(
                self.invalid(format_args!("`{name}` has shape {shape:?}; each size must be 1 or more"))
            );
        }
        Ok((tensor.data().to_vec(), shape))
    }

    /// Returns integers and their shape. u32 is converted to i32.
    pub(super) fn integers(&self, name: &str) -> Result<(Vec<i32>, Vec<usize>), Error> {
        let (words, shape) = self.words(name, &[Dtype::I32, Dtype::U32])?;
        Ok((words.map(i32::from_le_bytes).collect(), shape))
    }

    /// Returns a one-dimensional list of integers.
    pub(super) fn list(&self, name: &str) -> Result<Vec<i32>, Error> {
        match self.integers(name)? {
            (integers, shape) if shape.len() == 1 => Ok(integers),
            (_, shape) => {
                Err(self.invalid(format_args!("`{name}` has shape {shape:?}; it must have one dimension")))
            }
        }
    }

    /// Returns one f32 per head. With `shared`, a single number for all heads is also valid. Returns `None`
    /// if there is no such tensor.
    pub(super) fn per_head(&self, name: &str, heads: usize, shared: bool) -> Result<Option<Vec<f32>>, Error> {
        if !self.has(name) {
            return Ok(None);
        }
        let (words, shape) = self.words(name, &[Dtype::F32])?;
        let one = shared && (shape.is_empty() || shape[..] == [1]);
        if shape[..] != [heads] && !one {
            let single = if shared { "one number or " } else { "" };
            let what =
                format_args!("`{name}` has shape {shape:?}; it must be {single}[{heads}], one per head");
            return Err(self.invalid(what));
        }
        Ok(Some(words.map(f32::from_le_bytes).collect()))
    }

    /// Returns one f32 per row and head, `[pages, page, heads]`.
    pub(super) fn per_token(&self, name: &str, of: [usize; 3]) -> Result<Vec<f32>, Error> {
        if !self.has(name) {
            return Err(self.invalid(format_args!(
                "there is no `{name}`; an I8 cache needs `{name}` [pages, page, heads] f32, and latent \
                 caches (--v-width) cannot be I8"
            )));
        }
        let (words, shape) = self.words(name, &[Dtype::F32])?;
        if shape[..] != of {
            let what = format_args!(
                "`{name}` has shape {shape:?}; it must be [pages, page, heads], {of:?} (--layout says the \
                 order of k_cache's dimensions)"
            );
            return Err(self.invalid(what));
        }
        Ok(words.map(f32::from_le_bytes).collect())
    }

    /// Returns the words of a tensor of one of these types, and its shape. The error suggests to convert to
    /// the first type.
    pub(super) fn words(
        &self,
        name: &str,
        types: &[Dtype],
    ) -> Result<(impl Iterator<Item = [u8; 4]> + use<>, Vec<usize>), Error> {
        let tensor = self.tensor(name)?;
        let got = tensor.dtype();
        if !types.contains(&got) {
            return Err(self.invalid(format_args!("`{name}` is {got:?}; convert it to {:?}", types[0])));
        }
        Ok((tensor.data().as_chunks().0.to_vec().into_iter(), tensor.shape().to_vec()))
    }
}

/// Maximum number of bytes of a header, as in the crate safetensors.
const MOST_HEADER: u64 = 100_000_000;

/// Reads the header, the tensors that it lists, and one more byte. If there is one more byte, the file is
/// invalid. The function does not read to the end, because a device such as `/dev/zero` has no end. The
/// function stops as soon as the file is invalid.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (std::fs::File::open(path)?, vec![]);
    file.by_ref().take(8).read_to_end(&mut bytes)?;
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if length > MOST_HEADER {
        return Ok(bytes);
    }
    file.by_ref().take(length).read_to_end(&mut bytes)?;
    if let Ok(header) = serde_json::from_slice::<Metadata>(&bytes[bytes.len().min(8)..]) {
        file.take((header.data_len() as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Returns the ALiBi slopes in a file, if it has any, for the sequences and heads of a problem.
pub(super) fn read_slopes(file: &File<'_>, problem: &Problem) -> Result<Option<Slopes>, Error> {
    if !file.has("alibi_slopes") {
        return Ok(None);
    }
    let (words, shape) = file.words("alibi_slopes", &[Dtype::F32])?;
    let Problem { batch, heads_q, .. } = *problem;
    if shape != [heads_q] && shape != [batch, heads_q] {
        let wanted = format_args!("it must be [{heads_q}] or [{batch}, {heads_q}]");
        return Err(file.invalid(format_args!("`alibi_slopes` has shape {shape:?}; {wanted}")));
    }
    let values = words.map(f32::from_le_bytes).collect();
    Slopes::new(values, shape.len() == 2, problem).map(Some).map_err(|e| file.invalid(e))
}

/// Returns whether the sequences of a file are varlen.
pub(super) fn are_varlen(file: &File<'_>) -> bool {
    file.has("cu_seqlens_q") || file.has("cu_seqlens_k")
}

/// Reads the tensors `q`, `k`, `v` of a file. Varlen tensors become one batch.
pub(super) fn read_qkv(file: &File<'_>) -> Result<[Stored; 3], Error> {
    let is_varlen = are_varlen(file);
    let read = |name: &str| {
        let elements = file.elements(name, TENSORS)?;
        let shape = match elements.shape[..] {
            [rows, heads, head_dim] if is_varlen => [1, rows, heads, head_dim],
            [a, b, c, d] if !is_varlen => [a, b, c, d],
            ref other => {
                let needed = if is_varlen {
                    "with cu_seqlens_q it must be [rows, heads, head_dim]"
                } else {
                    "it must be [batch, seqlen, heads, head_dim], or with --layout bhsd [batch, heads, \
                     seqlen, head_dim]; varlen tensors are [rows, heads, head_dim], with cu_seqlens_q and \
                     cu_seqlens_k"
                };
                return Err(file.invalid(format_args!("`{name}` has shape {other:?}; {needed}")));
            }
        };
        Ok::<_, Error>(Stored { dtype: elements.dtype, shape, bits: elements.halves() })
    };
    Ok([read("q")?, read("k")?, read("v")?])
}

/// Writes `o` with the queries' shape, and the outputs of rows as f32 with their own shape.
pub(super) fn write_results(
    path: &Path,
    (dtype, shape): (DType, &[usize]),
    results: &Results,
    rows_shape: &[usize],
) -> Result<(), Error> {
    let mut tensors = vec![("o", bytes(dtype, shape, &results.o)?)];
    if let Some(heads) = &results.head_maxima {
        let values = heads.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensors.push(("max_logits_head", (Dtype::F32, vec![heads.len()], values)));
    }
    for (name, values) in
        results.rows.as_ref().named().filter_map(|(name, values)| Some((name, values.as_ref()?)))
    {
        let values = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        tensors.push((name, (Dtype::F32, rows_shape.to_vec(), values)));
    }
    write(path, &tensors)
}

/// Writes tensors, given by name, type, shape and contiguous little-endian elements.
pub(super) fn write_tensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a str, DType, &'a [usize], &'a [u8])>,
) -> Result<(), Error> {
    let all = tensors.map(|(name, dtype, shape, bytes)| {
        let (dtype, shape) = (stored(dtype)?, shape.to_vec());
        Ok((name, (dtype, shape, bytes.to_vec())))
    });
    write(path, &all.collect::<Result<Vec<_>, Error>>()?)
}

/// Writes `q`, `k` and `v`.
pub(super) fn write_qkv(path: &Path, [q, k, v]: &[Stored; 3]) -> Result<(), Error> {
    let bytes = |tensor: &Stored| bytes(tensor.dtype, &tensor.shape, &tensor.bits);
    write(path, &[("q", bytes(q)?), ("k", bytes(k)?), ("v", bytes(v)?)])
}

/// Type, shape and little-endian bytes of a tensor.
type Bytes = (Dtype, Vec<usize>, Vec<u8>);

fn bytes(dtype: DType, shape: &[usize], bits: &[u16]) -> Result<Bytes, Error> {
    Ok((stored(dtype)?, shape.to_vec(), bits.iter().flat_map(|x| x.to_le_bytes()).collect()))
}

/// Returns the name of a type in files.
fn stored(dtype: DType) -> Result<Dtype, Error> {
    let known = TYPES.into_iter().find(|(known, _)| *known == dtype);
    let unknown = || Error::Invalid(format!("{} cannot be written to files", dtype.name()));
    known.map(|(_, dtype)| dtype).ok_or_else(unknown)
}

fn write(path: &Path, tensors: &[(&str, Bytes)]) -> Result<(), Error> {
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect();
    let bytes = views.and_then(|views| safetensors::serialize(views, None));
    write_whole(path, &bytes.map_err(|e| unwritten(path, &e))?)
}

/// Writes a file completely or not at all: this function writes a temporary file and renames it. To a pipe or
/// a device, the function writes directly.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        if path.exists() && !path.is_file() {
            return std::fs::write(path, bytes);
        }
        // If the path is a link, this replaces the target file, not the link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut part = path.file_name().unwrap_or_default().to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, path));
        if written.is_err() {
            // The result is ignored, because the caller gets the first error.
            let _ = std::fs::remove_file(&part);
        }
        written
    };
    write().map_err(|e| unwritten(path, &e))
}

/// Returns the error of a file or folder that cannot be written.
pub(super) fn unwritten(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("{}: cannot be written: {why}", path.display()))
}

/// Refuses an output that is the input file, even if the two have different names.
pub(super) fn differ(input: &Path, output: &Path) -> Result<(), Error> {
    let same = matches!((input.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same {
        let (input, output) = (input.display(), output.display());
        return Err(Error::Invalid(format!(
            "--output {output} is the input file {input}; name another file"
        )));
    }
    Ok(())
}
