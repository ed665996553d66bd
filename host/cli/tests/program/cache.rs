//! `ferroflash run` on caches in files: the simulator against the reference, and files that are not right.
use crate::common::{Folder, check_error, ferroflash, report};
use ferroflash::DType;
use reference::Random;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// Keys of a page, and how many there are.
const PAGE: usize = 16;
const PAGES: usize = 9;
/// Query heads, key heads, columns.
const HEADS: [usize; 2] = [4, 2];
const DIM: usize = 64;

/// Tensors of a file by name.
type Tensors = Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>;

fn integers(
    name: &'static str,
    shape: &[usize],
    numbers: &[i32],
) -> (&'static str, Dtype, Vec<usize>, Vec<u8>) {
    (name, Dtype::I32, shape.into(), numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// Three sequences of `queries` queries each, of 40, 0 and 17 keys in shuffled pages.
fn tensors(queries: usize) -> Tensors {
    let mut random = Random::new(3);
    let mut halves = |shape: &[usize]| -> Vec<u8> {
        let bits = random.normals(DType::F16, shape.iter().product());
        bits.iter().flat_map(|x| x.to_le_bytes()).collect()
    };
    let (q, pool) = ([3 * queries, HEADS[0], DIM], [PAGES, PAGE, HEADS[1], DIM]);
    vec![
        ("q", Dtype::F16, q.into(), halves(&q)),
        ("k_cache", Dtype::F16, pool.into(), halves(&pool)),
        ("v_cache", Dtype::F16, pool.into(), halves(&pool)),
        integers("block_table", &[3, 4], &[7, 2, 5, -1, -1, -1, -1, -1, 0, 8, -1, -1]),
        integers("seqused_k", &[3], &[40, 0, 17]),
    ]
}

fn write(folder: &Folder, name: &str, tensors: &Tensors) -> String {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape needs"))
    });
    let path = folder.path(name);
    safetensors::serialize_to_file(views, None, path.as_ref()).expect("written");
    path
}

/// O and LSE of a file, with their shapes.
fn results(path: &str) -> [(Vec<usize>, Vec<u8>); 2] {
    let bytes = std::fs::read(path).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    ["o", "lse"].map(|name| {
        let tensor = file.tensor(name).expect("there");
        (tensor.shape().to_vec(), tensor.data().to_vec())
    })
}

/// Runs a file on the CPU and in the simulator, both judged; the CPU's results.
#[track_caller]
fn check(test: &str, tensors: &Tensors, options: &[&str]) -> [(Vec<usize>, Vec<u8>); 2] {
    let folder = Folder::new(test);
    let input = write(&folder, "cache.safetensors", tensors);
    let [cpu, sim] = ["cpu", "sim"].map(|device| {
        let output = folder.path(device);
        let run = ["run", "--check", "--device", device, "--input", &input, "--output", &output];
        let report = report(&[&run[..], options].concat());
        assert_eq!(report["check"]["passed"], true, "{report}");
        let kernel = report["kernel"].as_str().unwrap_or("none");
        let is_decode = kernel.starts_with("decode_f16_") && kernel.contains("d64");
        assert_eq!(is_decode, device == "sim", "{kernel}");
        results(&output)
    });
    assert_eq!([&cpu[0].0, &cpu[1].0], [&sim[0].0, &sim[1].0], "shapes");
    cpu
}

#[test]
fn pages_by_a_table() {
    let [(o, bits), (lse, logs)] = check("cache-pages", &tensors(1), &[]);
    assert_eq!((o, lse), (vec![3, 4, 64], vec![4, 3]));
    // The second sequence has no key.
    let row = HEADS[0] * DIM * 2;
    assert!(bits[row..2 * row].iter().all(|byte| *byte == 0));
    let lse: Vec<_> = logs.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!((0..12).all(|i| (lse[i] == f32::NEG_INFINITY) == (i % 3 == 1)), "{lse:?}");
}

#[test]
fn several_queries_windows_and_softcap() {
    let mut several = tensors(4);
    several.push(integers("cu_seqlens_q", &[4], &[0, 4, 8, 12]));
    check("cache-causal", &several, &["--causal"]);
    check("cache-window", &several, &["--window", "9,0", "--softcap", "20", "--scale", "0.2"]);
}

#[test]
fn eight_bits() {
    let mut eight = tensors(1);
    let mut random = Random::new(4);
    for (_, dtype, shape, bytes) in &mut eight[1..3] {
        *dtype = Dtype::F8_E4M3;
        *bytes = (0..shape.iter().product()).map(|_| reference::e4m3::encode(random.normal())).collect();
    }
    check("cache-eight", &eight, &[]);
}

#[test]
fn a_dense_cache_by_heads_with_sinks() {
    let mut dense = tensors(1);
    dense.retain(|(name, ..)| *name != "block_table");
    for (_, _, shape, bytes) in dense.iter_mut().filter(|(name, ..)| name.ends_with("_cache")) {
        *shape = vec![3, HEADS[1], 48, DIM];
        bytes.truncate(3 * HEADS[1] * 48 * DIM * 2);
    }
    let sinks = [0.5f32, -1.0, 2.0, 0.0];
    let bytes = sinks.iter().flat_map(|x| x.to_le_bytes()).collect();
    dense.push(("sinks", Dtype::F32, vec![4], bytes));
    let [_, (_, logs)] = check("cache-dense", &dense, &["--layout", "bhsd"]);
    let lse: Vec<_> = logs.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert!((0..4).all(|head| lse[head * 3 + 1] == sinks[head]), "{lse:?}");
}

#[test]
fn caches_that_are_not_right() {
    let folder = Folder::new("cache-refused");
    type Spoil = fn(&mut Tensors);
    let cases: [(&str, Spoil, &str); 8] = [
        (
            "too long",
            |t| t[4] = integers("seqused_k", &[3], &[40, 0, 65]),
            "`seqused_k[2]` is 65; there is room",
        ),
        ("negative", |t| t[4] = integers("seqused_k", &[3], &[-1, 0, 1]), "`seqused_k[0]` is -1"),
        ("no lengths", |t| drop(t.remove(4)), "has no tensor `seqused_k`"),
        ("no page", |t| t[3] = integers("block_table", &[3, 1], &[9, 0, 1]), "room for 16 keys"),
        ("a page too far", |t| t[3].3[4] = 9, "`block_table` has page 9 for sequence 0; `k_cache` has 9"),
        ("another type", |t| t[2].1 = Dtype::BF16, "`v_cache` is bf16"),
        ("sequences", |t| t[4] = integers("seqused_k", &[2], &[1, 1]), "as many queries as the others"),
        (
            "ragged",
            |t| t.push(integers("cu_seqlens_q", &[4], &[0, 1, 1, 3])),
            "`cu_seqlens_q` is [0, 1, 1, 3]",
        ),
    ];
    for (_, spoil, words) in cases {
        let mut tensors = tensors(1);
        spoil(&mut tensors);
        let path = write(&folder, "cache.safetensors", &tensors);
        let output = ferroflash(&["run", "--device", "cpu", "--input", &path]).output().expect("starts");
        check_error(&output, 2, words);
    }
    let path = write(&folder, "cache.safetensors", &tensors(1));
    let run = ["run", "--device", "cpu", "--input", &path, "--causal", "--top-left"];
    check_error(&ferroflash(&run).output().expect("starts"), 2, "--top-left");
}
