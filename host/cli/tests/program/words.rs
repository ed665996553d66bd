//! Tests that errors of the library name the program's options and tensors, not the library's fields.
use crate::cache::tensors;
use crate::common::{Folder, check as refused};
use crate::tensors::{Tensors, floats, integers, write};
use safetensors::Dtype;

/// Returns a file of zeros: q with one query of 16 heads, and a cache of 576 columns.
fn latent() -> Tensors {
    let halves = |name, shape: &[usize]| {
        (name, Dtype::F16, shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()])
    };
    vec![
        halves("q", &[2, 1, 16, 576]),
        halves("k_cache", &[2, 16, 1, 576]),
        integers("seqused_k", &[2], &[9, 16]),
    ]
}

/// Sets the number of columns of a tensor.
fn with_columns(mut tensors: Tensors, name: &str, columns: usize) -> Tensors {
    for (_, _, shape, bytes) in tensors.iter_mut().filter(|(own, ..)| *own == name) {
        *shape.last_mut().expect("columns") = columns;
        *bytes = vec![0; 2 * shape.iter().product::<usize>()];
    }
    tensors
}

#[test]
fn errors_name_options_and_tensors() {
    let folder = Folder::new("words");
    let latents: &[&str] = &["--v-width", "512", "--scale", "0.07"];
    let with = |options: &[&'static str]| [latents, options].concat();
    let more = |tensor| [latent(), vec![tensor]].concat();
    let slopes = floats("alibi_slopes", &[16], &[0.5; 16]);
    let shared = integers("block_table", &[3, 4], &[7, 2, 5, 0, 7, 2, 5, 0, 7, 8, 0, 0]);
    let mut sharing = tensors(1);
    sharing[3] = shared;
    sharing[4] = integers("seqused_k", &[3], &[40, 40, 17]);
    let ragged = integers("cu_seqlens_q", &[3], &[0, 0, 2]);
    let mut varlen = more(ragged);
    varlen[0].2 = vec![2, 16, 576];
    let own_values =
        [latent(), vec![("v_cache", Dtype::F16, vec![2, 16, 1, 512], vec![0; 2 * 2 * 16 * 512])]];
    for (tensors, options, words) in [
        (latent(), with(&["--softcap", "4"]), "kernels for latent caches have none; leave --softcap out"),
        (more(slopes), with(&[]), "have none; remove `alibi_slopes`"),
        (latent(), vec!["--v-width", "512"], "--scale none: a latent cache has no default scale"),
        (varlen, with(&[]), "equal query counts; write one file per query count"),
        (own_values.concat(), vec![], "k of a latent cache (--v-width) may have up to 576"),
        (
            with_columns(tensors(1), "q", 128),
            vec![],
            "`q` has shape [3, 4, 128] and `k_cache` [9, 16, 2, 64]; the last size, head_dim, must be equal",
        ),
        (with_columns(tensors(1), "v_cache", 100), vec![], "head_dim of v 100"),
        (
            with_columns(tensors(1), "v_cache", 264),
            vec![],
            "split v and o into parts of at most 256 columns, and write one file for each part",
        ),
        (
            sharing,
            vec!["--shared-pages", "1", "--window", "4,0"],
            "one pass over whole sequences; leave --shared-pages out: one pass is right, too",
        ),
    ] {
        let input = write(&folder, "cache.safetensors", &tensors);
        refused(&[&["run", "--device", "sim", "--input", &input], &options[..]].concat(), 2, words);
    }
}
