//! Helpers for files of tensors: writes them, and reads results.
use crate::common::{Folder, report};
use ferroflash::DType;
use reference::Random;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// A tensor of a file: its name, type and shape, and its elements, contiguous and little-endian.
pub type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);
/// Tensors of a file.
pub type Tensors = Vec<Tensor>;
/// Shape and bytes of an output.
pub type Output = (Vec<usize>, Vec<u8>);

pub fn integers(name: &'static str, shape: &[usize], numbers: &[i32]) -> Tensor {
    (name, Dtype::I32, shape.into(), numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

pub fn floats(name: &'static str, shape: &[usize], numbers: &[f32]) -> Tensor {
    (name, Dtype::F32, shape.into(), numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Returns a tensor of these 16-bit elements.
pub fn halves(name: &'static str, dtype: Dtype, shape: &[usize], bits: &[u16]) -> Tensor {
    (name, dtype, shape.into(), bits.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Draws an f16 tensor of normal numbers.
pub fn normals(name: &'static str, random: &mut Random, shape: &[usize]) -> Tensor {
    halves(name, Dtype::F16, shape, &random.normals(DType::F16, shape.iter().product()))
}

/// Writes a file and returns its path.
pub fn write<N: AsRef<str> + Ord + std::fmt::Display>(
    folder: &Folder,
    name: &str,
    tensors: &[(N, Dtype, Vec<usize>, Vec<u8>)],
) -> String {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("the bytes that the shape needs"))
    });
    let path = folder.path(name);
    safetensors::serialize_to_file(views, None, path.as_ref()).expect("written");
    path
}

/// Writes a file of zeros and returns its path.
pub fn zeros(folder: &Folder, name: &str, tensors: &[(&str, Dtype, &[usize])]) -> String {
    let zeros = tensors.iter().map(|(name, dtype, shape)| {
        (*name, *dtype, shape.to_vec(), vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8])
    });
    write(folder, name, &zeros.collect::<Vec<_>>())
}

/// Returns type, shape and bytes of a tensor in a file.
pub fn read(path: &str, name: &str) -> Option<(Dtype, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensor = file.tensor(name).ok()?;
    Some((tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()))
}

/// Returns O and LSE of a file.
pub fn results(path: &str) -> [Output; 2] {
    ["o", "lse"].map(|name| read(path, name).map(|(_, shape, bytes)| (shape, bytes)).expect("there"))
}

/// Returns the elements of an f32 tensor.
pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Runs a file on the CPU and in the simulator, and judges the simulator's results. Returns the name of the
/// simulator's kernel, and the results of both.
#[track_caller]
pub fn on_both(test: &str, tensors: &[Tensor], options: &[&str]) -> (String, [[Output; 2]; 2]) {
    let folder = Folder::new(test);
    let (sim, output) = (on_sim(&folder, tensors, options), folder.path("cpu"));
    let run = ["run", "--device", "cpu", "--input", &folder.path("input"), "--output", &output];
    // The CPU's result is the reference, so there is nothing to check.
    let of_cpu = report(&[&run[..], options].concat());
    assert!(of_cpu["check"].is_null() && of_cpu["kernel"].is_null(), "{of_cpu}");
    let cpu = results(&output);
    assert_eq!([&cpu[0].0, &cpu[1].0], [&sim.1[0].0, &sim.1[1].0], "shapes");
    (sim.0, [cpu, sim.1])
}

/// Writes a file `input`, runs it in the simulator, and judges the results. Returns the name of the kernel,
/// and the results.
#[track_caller]
pub fn on_sim(folder: &Folder, tensors: &[Tensor], options: &[&str]) -> (String, [Output; 2]) {
    let (input, output) = (write(folder, "input", tensors), folder.path("sim"));
    let run = ["run", "--device", "sim", "--check", "--input", &input, "--output", &output];
    let report = report(&[&run[..], options].concat());
    assert_eq!(report["check"]["passed"].as_bool(), Some(true), "{report}");
    (report["kernel"].as_str().expect("a kernel").to_owned(), results(&output))
}
