//! Makes requests from the words of a row. `tests/plans.txt` explains the words.
use super::fields::{assign, dtype};
use ferroflash::{request::*, *};
use std::collections::BTreeMap;

/// Distance of the buffers, so that no two of them overlap by accident.
const FAR: u64 = 1 << 44;

/// A request of a row.
#[expect(clippy::large_enum_variant, reason = "a test makes one at a time")]
pub enum Request<'r> {
    Attention(AttentionRequest<'r>),
    Backward(AttentionBackward<'r>),
    Append(Append),
    Merge { states: Vec<State>, o: TensorView, lse: Option<LseView>, sinks: Option<Sinks> },
}

/// The words of a request by what they describe. A later word overrides an earlier one.
#[derive(Default)]
struct Words<'r> {
    words: BTreeMap<&'r str, (&'r str, &'r str)>,
    assignments: Vec<&'r str>,
}

/// Words without a value, and words with a value behind them, that describe one thing each.
const FLAGS: [&str; 19] = [
    "alibi",
    "sinks",
    "lse",
    "max_logits",
    "entropy",
    "max_logits_head",
    "always",
    "append",
    "seqused",
    "padded",
    "rows",
    "backward",
    "d_lse",
    "dsinks",
    "dtable",
    "int8_f16",
    "int8_fp8",
    "fp8",
    "descales",
];
const VALUES: [&str; 25] = [
    "q",
    "k",
    "v",
    "o",
    "values",
    "kv",
    "latent",
    "table",
    "max_k",
    "total_k",
    "k_scale",
    "v_scale",
    "varlen",
    "keys",
    "scale",
    "softcap",
    "bias",
    "dbias",
    "counters",
    "config",
    "slots",
    "rotary",
    "merge",
    "topk",
    "invariant",
];

/// Returns what a word describes, and whether a value follows the word.
fn meaning(word: &str) -> Option<(&'static str, bool)> {
    let named = |list: &[&'static str]| list.iter().find(|own| **own == word).copied();
    match word {
        "f16" | "bf16" | "f32" | "e4m3" | "int8" => Some(("dtype", false)),
        "bhsd" => Some(("layout", false)),
        "cache" | "pages" => Some(("cache", true)),
        "full" | "causal" => Some(("mask", false)),
        "window" | "prefix" | "chunked" | "bits" => Some(("mask", true)),
        "top_left" => Some(("alignment", false)),
        "fastest" => Some(("scratch", false)),
        "workspace" => Some(("scratch", true)),
        "splits" | "split_keys" => Some(("splits", true)),
        "shared" | "shared_varlen" => Some(("shared", true)),
        _ => named(&FLAGS).map(|of| (of, false)).or_else(|| named(&VALUES).map(|of| (of, true))),
    }
}

impl<'r> Words<'r> {
    fn new(text: &[&'r str]) -> Self {
        let mut all = Words::default();
        let mut text = text.iter();
        while let Some(word) = text.next() {
            let mut value = || *text.next().unwrap_or_else(|| panic!("{word} needs a value"));
            if word.contains('=') {
                all.assignments.push(word);
            } else if *word == "no" {
                let name = value();
                all.words.retain(|of, (word, _)| *of != name && *word != name);
            } else {
                let (of, has_value) =
                    meaning(word).unwrap_or_else(|| panic!("{word} is no word of a request"));
                all.words.insert(of, (word, if has_value { value() } else { "" }));
            }
        }
        all
    }

    fn word(&self, of: &str) -> &'r str {
        self.words.get(of).map_or("", |(word, _)| word)
    }

    fn has(&self, of: &str) -> bool {
        self.words.contains_key(of)
    }

    fn value(&self, of: &str) -> Option<&'r str> {
        self.words.get(of).map(|(_, value)| *value)
    }

    fn number<T: std::str::FromStr>(&self, of: &str) -> Option<T> {
        self.value(of).map(|text| text.parse().unwrap_or_else(|_| panic!("{of} {text}: not a number")))
    }

    fn sizes<const N: usize>(&self, of: &str) -> Option<[usize; N]> {
        self.value(of).map(sizes)
    }

    fn dtype(&self) -> DType {
        dtype(self.word("dtype")).expect("a dtype")
    }

    /// Returns the contiguous tensor of a word, in buffer `n`.
    fn view(&self, n: u64, dtype: DType, shape: [usize; 4]) -> TensorView {
        let make = if self.has("layout") { TensorView::bhsd } else { TensorView::bshd };
        make(n * FAR, product(&shape), dtype, shape)
    }
}

/// Parses sizes such as `2x128x4x64`.
fn sizes<const N: usize>(text: &str) -> [usize; N] {
    let all: Vec<_> = text.split('x').filter_map(|size| size.parse().ok()).collect();
    all.try_into().unwrap_or_else(|_| panic!("{text}: not {N} sizes"))
}

fn product(sizes: &[usize]) -> u64 {
    let product: u128 = sizes.iter().map(|size| *size as u128).product();
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Makes the request of these words.
pub fn request<'r>(text: &[&'r str]) -> Request<'r> {
    let words = Words::new(text);
    let mut request = if words.has("append") {
        Request::Append(append(&words))
    } else if words.has("merge") {
        merge(&words)
    } else if words.has("backward") {
        Request::Backward(backward(&words))
    } else {
        Request::Attention(attention(&words))
    };
    words.assignments.iter().for_each(|assignment| assign(&mut request, assignment));
    request
}

fn attention<'r>(words: &Words<'r>) -> AttentionRequest<'r> {
    let (dtype, q) = (words.dtype(), words.sizes("q").expect("q"));
    let [batch, queries, heads, _] = q;
    let varlen = words
        .sizes("varlen")
        .map(|[batch, longest]| VarlenQueries::new(batch, Index::new(7 * FAR, batch as u64 + 1), longest));
    let sequences = varlen.map_or(batch, |varlen| varlen.batch);
    let kv = match words.sizes("k") {
        None if words.has("topk") => KeysValues::Listed(listed(words, q)),
        None => KeysValues::Cache(cache(words, sequences)),
        Some(shape) => {
            let (k, v) =
                (words.view(2, dtype, shape), words.view(3, dtype, words.sizes("v").unwrap_or(shape)));
            varlen.map_or(KeysValues::Tensors { k, v }, |varlen| {
                let longest = words.number("keys").unwrap_or(varlen.max_seqlen_q);
                let mut keys = VarlenKeys::new(Index::new(8 * FAR, sequences as u64 + 1), longest);
                keys.seqused_k = words.has("seqused").then(|| Index::new(9 * FAR, sequences as u64));
                KeysValues::Varlen { k, v, keys }
            })
        }
    };
    let columns = match &kv {
        KeysValues::Cache(cache) => cache.pages.values.shape[3],
        KeysValues::Listed(keys) => keys.pages.values.shape[3],
        kv => kv.tensors().expect("tensors")[1].shape[3],
    };
    let o = words.sizes("o").unwrap_or([batch, queries, heads, columns]);
    let [q, o] = [(1, q), (4, o)].map(|(n, shape)| words.view(n, dtype, shape));
    let mut f = AttentionRequest::new(q, varlen.map_or(Queries::Batched, Queries::Varlen), kv, o);
    f.mask = mask(words, sequences);
    if words.has("alignment") {
        f.alignment = Alignment::TopLeft;
    }
    f.scores.scale = words.number("scale");
    f.scores.softcap = words.number("softcap");
    f.scores.alibi = words.has("alibi").then(|| AlibiSlopes::new(11 * FAR, heads as u64));
    f.scores.sinks = words.has("sinks").then_some(Sinks { address: 12 * FAR, elements: heads as u64 });
    f.scores.bias = words.sizes("bias").map(|shape| bias(13, dtype, shape));
    f.lse = words.has("lse").then(|| lse(10, [batch, heads, queries]));
    f.max_logits = words.has("max_logits").then(|| lse(14, [batch, heads, queries]));
    f.entropy = words.has("entropy").then(|| lse(40, [batch, heads, queries]));
    let heads = Sinks { address: 42 * FAR, elements: heads as u64 };
    f.max_logits_head = words.has("max_logits_head").then_some(heads);
    if let (true, Queries::Varlen(queries)) = (words.has("padded"), &mut f.queries) {
        *queries = queries.seqused_q(Index::new(43 * FAR, sequences as u64));
    }
    f.scratch = match words.word("scratch") {
        "fastest" => Scratch::Fastest,
        "workspace" => Scratch::Memory {
            workspace: Region { address: 20 * FAR, bytes: words.number("scratch").expect("bytes") },
            counters: words.number("counters").map(|bytes| Region { address: 21 * FAR, bytes }),
        },
        _ => Scratch::None,
    };
    f.splits = match words.word("splits") {
        "splits" => Splits::Exactly(words.number("splits").expect("a number")),
        "split_keys" => Splits::Keys(words.number("splits").expect("a number")),
        _ => Splits::Auto,
    };
    f.invariance = match words.value("invariant") {
        None => Invariance::None,
        Some("batch") => Invariance::Batch,
        Some("chunks") => Invariance::BatchAndChunks,
        Some(other) => panic!("invariant {other}: not batch or chunks"),
    };
    f.shared_prefixes = words.sizes("shared").map(|groups| shared(words, groups, sequences));
    let precisions =
        [("int8_f16", Precision::Int8F16), ("int8_fp8", Precision::Int8Fp8), ("fp8", Precision::Fp8)];
    if let Some((_, precision)) = precisions.into_iter().find(|(word, _)| words.has(word)) {
        f.precision = precision;
    }
    if let (true, Some([k, _])) = (words.has("descales"), f.kv.tensors()) {
        let (batch, heads) = (f.problem().batch, k.shape[2]);
        let (elements, strides) = ((batch * heads) as u64, [heads as i64, 1]);
        let scale = |n: u64| KvScale::Device { address: n * FAR, elements, strides };
        f.descales = Descales::new(scale(44), scale(45), scale(46));
    }
    f.config = words.value("config");
    f
}

fn backward<'r>(words: &Words<'r>) -> AttentionBackward<'r> {
    let f = attention(words);
    let [_, k, v] = ["q", "k", "v"].map(|tensor| words.sizes(tensor));
    let k = k.unwrap_or(f.q.shape);
    let shapes = [f.o.shape, f.q.shape, k, v.unwrap_or(k)];
    let mut next = 34;
    let [d_o, dq, dk, dv] = shapes.map(|shape| {
        next += 1;
        words.view(next, f.q.dtype, shape)
    });
    let [batch, queries, heads, _] = f.q.shape;
    let mut backward = AttentionBackward::new(f, d_o, dq, dk, dv).scratch(f.scratch);
    backward.d_lse = words.has("d_lse").then(|| lse(34, [batch, heads, queries]));
    backward.dsinks = words.has("dsinks").then_some(Sinks { address: 39 * FAR, elements: heads as u64 });
    backward.dtable = words.has("dtable").then_some(TableGradient { address: 40 * FAR, elements: 8 });
    backward.dbias = words.sizes("dbias").map(|shape| bias(41, words.dtype(), shape));
    backward
}

fn bias(n: u64, dtype: DType, shape: [usize; 4]) -> Bias {
    let row = shape[3].next_multiple_of(8);
    Bias::rows(n * FAR, product(&shape[..3]) * row as u64, dtype, shape, row)
}

fn lse(n: u64, shape: [usize; 3]) -> LseView {
    LseView::contiguous(n * FAR, product(&shape), shape)
}

fn mask(words: &Words<'_>, sequences: usize) -> Mask {
    let value = words.value("mask").unwrap_or_default();
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("mask {text}: not a number"));
    match (words.word("mask"), value) {
        ("causal", _) => Mask::Causal,
        ("window", sides) => {
            let (left, right) = sides.split_once(',').expect("two sides");
            let side = |text| if text == "-1" { None } else { Some(number(text)) };
            Mask::Window { left: side(left), right: side(right) }
        }
        ("prefix", "each") => Mask::Prefix(Prefix::Each(Index::new(14 * FAR, sequences as u64))),
        ("prefix", keys) => Mask::Prefix(Prefix::All(number(keys))),
        ("chunked", chunk) => Mask::Chunked { chunk: number(chunk) },
        ("bits", shape) => {
            let shape: [usize; 4] = sizes(shape);
            let bytes = product(&shape[..3]) * shape[3].div_ceil(8) as u64;
            Mask::Bits(MaskBits::contiguous(14 * FAR, bytes, shape))
        }
        _ => Mask::Full,
    }
}

/// Returns the pages of a cache, or of an append.
fn pages(words: &Words<'_>, sequences: usize) -> KvPages {
    let shape: [usize; 4] = words.sizes("cache").expect("cache or pages");
    let own = words.value("kv").map_or(words.dtype(), |name| dtype(name).expect("a dtype"));
    let keys = words.view(2, own, shape);
    let values = words.view(3, own, words.sizes("values").unwrap_or(shape));
    let heads = shape[2];
    if own == DType::Int8 && words.number::<usize>("latent").is_none() {
        let scales = |n: u64| TokenScales::contiguous(n * FAR, product(&shape[..3]), heads);
        return KvPages::int8(keys, values, scales(15), scales(16));
    }
    let scale = |n: u64, of: &str| {
        let device = |each: usize| {
            let elements = (heads + each * sequences.saturating_sub(1)) as u64;
            KvScale::Device { address: n * FAR, elements, strides: [each as i64, 1] }
        };
        match words.value(of) {
            None => KvScale::One,
            Some("heads") => device(0),
            Some("sequences") => device(heads),
            Some(value) => KvScale::Value(value.parse().expect("a number")),
        }
    };
    let latent = words.number("latent").map(|columns| KvPages::latent(keys, columns));
    let pages = latent.unwrap_or(KvPages::new(keys, values));
    pages.scales(scale(15, "k_scale"), scale(16, "v_scale"))
}

fn cache(words: &Words<'_>, sequences: usize) -> KvCache {
    let (pages, lengths) = (pages(words, sequences), Index::new(5 * FAR, sequences as u64));
    let longest = words.number("max_k");
    let mut cache = if words.word("cache") == "cache" {
        let dense = KvCache::dense(pages, lengths);
        if words.has("rows") { dense.rows(Index::new(6 * FAR, sequences as u64)) } else { dense }
    } else {
        let page = pages.keys.shape[1].max(1);
        let columns: usize =
            words.number("table").or(longest.map(|keys: usize| keys.div_ceil(page))).expect("table or max_k");
        KvCache::paged(pages, Index::new(6 * FAR, product(&[sequences, columns])), columns, lengths)
    };
    cache.max_k = longest.unwrap_or(cache.max_k);
    cache.total_k = words.number("total_k");
    cache
}

/// Returns lists of keys for these queries.
fn listed(words: &Words<'_>, [queries, ..]: [usize; 4]) -> ListedKeys {
    let (pages, topk) = (pages(words, queries), words.number("topk").expect("topk"));
    let slots = product(&[queries, pages.keys.shape[2], topk]);
    ListedKeys::new(pages, Index::new(6 * FAR, slots), topk)
}

/// Returns groups of sequences that share this number of pages.
fn shared(words: &Words<'_>, [count, pages]: [usize; 2], sequences: usize) -> SharedPrefixes {
    let index = |n: u64, elements: usize| Index::new(n * FAR, elements as u64);
    let rest = index(22, sequences);
    let prefixes = match words.word("shared") {
        "shared" => SharedPrefixes::equal(count, pages, rest),
        _ => SharedPrefixes::varlen(
            VarlenQueries::new(count, index(23, count + 1), sequences),
            Level::new(index(24, count * pages), pages, index(25, count)),
            Level::new(index(26, sequences * 20), 20, rest),
        ),
    };
    if words.has("always") { prefixes.always() } else { prefixes }
}

fn append(words: &Words<'_>) -> Append {
    let (dtype, shape) = (words.dtype(), words.sizes("k").expect("k"));
    let slots = words.number("slots").expect("slots");
    let (k, pages, at) = (words.view(30, dtype, shape), pages(words, 1), Slots::i64(5 * FAR, slots));
    let append = match words.has("latent") {
        true => Append::latent(k, pages, at),
        false => Append::new(k, words.view(31, dtype, words.sizes("v").unwrap_or(shape)), pages, at),
    };
    let Some([positions, dims]) = words.sizes("rotary") else { return append };
    let table = words.view(32, DType::F32, [1, positions, 1, dims]);
    let rotary = Rotary::cos_sin(table, Positions::i64(33 * FAR, slots));
    append.rotary(match words.sizes("q") {
        Some(q) => rotary.queries(words.view(1, dtype, q), words.view(4, dtype, q)),
        None => rotary,
    })
}

fn merge<'r>(words: &Words<'r>) -> Request<'r> {
    let shape @ [batch, rows, heads, _] = words.sizes("o").expect("o");
    let state = |n: u64| {
        State::new(words.view(2 * n + 40, words.dtype(), shape), lse(2 * n + 41, [batch, heads, rows]))
    };
    Request::Merge {
        states: (0..words.number("merge").expect("a number")).map(state).collect(),
        o: words.view(4, words.dtype(), shape),
        lse: words.has("lse").then(|| lse(10, [batch, heads, rows])),
        sinks: words.has("sinks").then_some(Sinks { address: 12 * FAR, elements: heads as u64 }),
    }
}
