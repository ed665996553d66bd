//! Fields of requests by the names that errors give them, such as `cache.keys.strides[1]`.
use super::request::Request;
use ferroflash::{request::*, *};

/// A value that a row can set.
pub trait Leaf {
    /// Returns the value as a number, if it is one.
    fn number(&self) -> Option<i128> {
        None
    }

    /// Sets the value to `text`, whose value as a number is `number`.
    fn set(&mut self, text: &str, number: Option<i128>);
}

/// A part of a request with named fields.
pub trait Part {
    /// Returns the value with this path.
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf>;
}

impl<T: Leaf> Part for T {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        if path.is_empty() { Some(self) } else { None }
    }
}

impl<T: Part, const N: usize> Part for [T; N] {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        self.get_mut(path.first()?.parse::<usize>().ok()?)?.part(&path[1..])
    }
}

impl<T: Part> Part for Vec<T> {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        self.get_mut(path.first()?.parse::<usize>().ok()?)?.part(&path[1..])
    }
}

macro_rules! numbers {
    ($($number:ty)*) => { $(impl Leaf for $number {
        fn number(&self) -> Option<i128> {
            i128::try_from(*self).ok()
        }

        fn set(&mut self, text: &str, number: Option<i128>) {
            let number = number.unwrap_or_else(|| panic!("{text} is no number"));
            *self = <$number>::try_from(number).unwrap_or_else(|_| panic!("{text} does not fit"));
        }
    })* };
}
numbers! { u64 usize i64 u32 }

macro_rules! values {
    ($($value:ty: $parse:expr;)*) => { $(impl Leaf for $value {
        fn set(&mut self, text: &str, _: Option<i128>) {
            let parse: fn(&str) -> Option<$value> = $parse;
            *self = parse(text).unwrap_or_else(|| panic!("{text} is no value of this field"));
        }
    })* };
}
values! {
    f32: |text| text.parse().ok();
    bool: |text| text.parse().ok();
    DType: dtype;
    Option<f32>: |text| if text == "none" { Some(None) } else { text.parse().ok().map(Some) };
    Option<usize>: |text| if text == "none" { Some(None) } else { text.parse().ok().map(Some) };
    (u32, u32): |text| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    LseUnit: |text| (text == "two").then_some(LseUnit::Two);
    KvScale: |text| if text == "one" { Some(KvScale::One) } else { text.parse().ok().map(KvScale::Value) };
}

/// Returns the dtype with this name.
pub fn dtype(name: &str) -> Option<DType> {
    let all = [DType::F16, DType::Bf16, DType::F32, DType::E4m3, DType::Int8, DType::E4m3Scaled];
    all.into_iter().find(|dtype| dtype.name() == name)
}

macro_rules! fields {
    ($($part:ident { $($field:ident)* $(; $some:ident)* })*) => { $(impl Part for $part {
        fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
            match *path.first()? {
                $(stringify!($field) => self.$field.part(&path[1..]),)*
                $(stringify!($some) => self.$some.as_mut()?.part(&path[1..]),)*
                _ => None,
            }
        }
    })* };
}
fields! {
    Index { address elements }
    TensorView { address elements dtype shape strides }
    LseView { address elements shape strides row_stride unit }
    Sinks { address elements }
    TableGradient { address elements }
    AlibiSlopes { address elements strides }
    Bias { address elements dtype shape strides }
    MaskBits { address bytes shape strides }
    Region { address bytes }
    Slots { address elements }
    Positions { address elements }
    TokenScales { address elements strides }
    State { o lse }
    Capabilities {
        compute_capability sms smem_per_block smem_per_sm registers_per_sm l2_bytes memory_bytes tensor_maps
    }
}

/// A scale is a value, or has fields in memory.
fn scale<'s>(scale: &'s mut KvScale, path: &[&str]) -> Option<&'s mut dyn Leaf> {
    let Some((first, rest)) = path.split_first() else { return Some(scale) };
    let (KvScale::Device { address, elements, strides }
    | KvScale::Tokens(TokenScales { address, elements, strides })) = scale
    else {
        return None;
    };
    match *first {
        "address" => address.part(rest),
        "elements" => elements.part(rest),
        "strides" => strides.part(rest),
        _ => None,
    }
}

fn pages<'p>(pages: &'p mut KvPages, path: &[&str]) -> Option<&'p mut dyn Leaf> {
    let rest = path.get(1..)?;
    match path[0] {
        "keys" => pages.keys.part(rest),
        "values" => pages.values.part(rest),
        "k_scale" => scale(&mut pages.scales[0], rest),
        "v_scale" => scale(&mut pages.scales[1], rest),
        _ => None,
    }
}

impl Part for KvCache {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        let (first, rest) = path.split_first()?;
        match (*first, &mut self.paged) {
            ("lengths", _) => self.lengths.part(rest),
            ("max_k", _) => self.max_k.part(rest),
            ("total_k", _) => self.total_k.part(rest),
            ("rows", Paged::Dense { rows }) => rows.as_mut()?.part(rest),
            ("table", Paged::Table { columns, .. }) if rest == ["columns"] => Some(columns),
            ("table", Paged::Table { stride, .. }) if rest == ["stride"] => Some(stride),
            ("table", Paged::Table { entries, .. }) => entries.part(rest),
            _ => pages(&mut self.pages, path),
        }
    }
}

impl Part for AttentionRequest<'_> {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        let (first, rest) = path.split_first()?;
        match *first {
            "q" => return self.q.part(rest),
            "o" => return self.o.part(rest),
            "lse" => return self.lse.as_mut()?.part(rest),
            "max_logits" => return self.max_logits.as_mut()?.part(rest),
            "max_logits_head" => return self.max_logits_head.as_mut()?.part(rest),
            "entropy" => return self.entropy.as_mut()?.part(rest),
            "scale" => return self.scores.scale.part(rest),
            "softcap" => return self.scores.softcap.part(rest),
            "alibi" => return self.scores.alibi.as_mut()?.part(rest),
            "sinks" => return self.scores.sinks.as_mut()?.part(rest),
            "bias" => return self.scores.bias.as_mut()?.part(rest),
            "q_descale" => return scale(&mut self.descales.q, rest),
            "k_descale" => return scale(&mut self.descales.k, rest),
            "v_descale" => return scale(&mut self.descales.v, rest),
            _ => {}
        }
        match (*first, &mut self.kv) {
            ("k", kv) => return kv.tensors_mut()?[0].part(rest),
            ("v", kv) => return kv.tensors_mut()?.into_iter().nth(1)?.part(rest),
            ("cache", KeysValues::Cache(cache)) => return cache.part(rest),
            ("cache", KeysValues::Listed(keys)) => return pages(&mut keys.pages, rest),
            ("indices", KeysValues::Listed(keys)) => return keys.indices.part(rest),
            ("topk", KeysValues::Listed(keys)) => return keys.topk.part(rest),
            ("cu_seqlens_k", KeysValues::Varlen { keys, .. }) => return keys.cu_seqlens_k.part(rest),
            ("seqused_k", KeysValues::Varlen { keys, .. }) => return keys.seqused_k.as_mut()?.part(rest),
            ("max_seqlen_k", KeysValues::Varlen { keys, .. }) => return keys.max_seqlen_k.part(rest),
            _ => {}
        }
        match (*first, &mut self.queries, &mut self.mask, &mut self.scratch) {
            ("batch", Queries::Varlen(queries), ..) => queries.batch.part(rest),
            ("cu_seqlens_q", Queries::Varlen(queries), ..) => queries.cu_seqlens_q.part(rest),
            ("seqused_q", Queries::Varlen(queries), ..) => queries.seqused_q.as_mut()?.part(rest),
            ("max_seqlen_q", Queries::Varlen(queries), ..) => queries.max_seqlen_q.part(rest),
            ("bits", _, Mask::Bits(bits), _) => bits.part(rest),
            ("prefix", _, Mask::Prefix(Prefix::Each(each)), _) => each.part(rest),
            ("workspace", _, _, Scratch::Memory { workspace, .. }) => workspace.part(rest),
            ("counters", _, _, Scratch::Memory { counters, .. }) => counters.as_mut()?.part(rest),
            ("rest", ..) => match &mut self.shared_prefixes.as_mut()?.groups {
                Groups::Equal { rest: own, .. } => own.part(rest),
                Groups::Varlen { rest: own, .. } => own.lengths.part(rest),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Part for AttentionBackward<'_> {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        let (first, rest) = path.split_first()?;
        match (*first, &mut self.scratch) {
            ("d_o", _) => self.d_o.part(rest),
            ("d_lse", _) => self.d_lse.as_mut()?.part(rest),
            ("dq", _) => self.dq.part(rest),
            ("dk", _) => self.dk.part(rest),
            ("dv", _) => self.dv.part(rest),
            ("dsinks", _) => self.dsinks.as_mut()?.part(rest),
            ("dtable", _) => self.dtable.as_mut()?.part(rest),
            ("dbias", _) => self.dbias.as_mut()?.part(rest),
            ("workspace", Scratch::Memory { workspace, .. }) => workspace.part(rest),
            _ => self.forward.part(path),
        }
    }
}

impl Part for Append {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        let (first, rest) = path.split_first()?;
        match (*first, &mut self.rotary) {
            ("k", _) => self.k.part(rest),
            ("v", _) => self.v.part(rest),
            ("slots", _) => self.slots.part(rest),
            ("cache", _) => pages(&mut self.pages, rest),
            ("cos", Some(rotary)) => rotary.cos.part(rest),
            ("sin", Some(rotary)) => rotary.sin.part(rest),
            ("positions", Some(rotary)) => rotary.positions.part(rest),
            ("first_column", Some(rotary)) => rotary.first_column.part(rest),
            ("q", Some(rotary)) => rotary.queries.as_mut()?.q.part(rest),
            ("rotated", Some(rotary)) => rotary.queries.as_mut()?.rotated.part(rest),
            _ => None,
        }
    }
}

impl Part for Request<'_> {
    fn part(&mut self, path: &[&str]) -> Option<&mut dyn Leaf> {
        match self {
            Request::Attention(f) => f.part(path),
            Request::Backward(backward) => backward.part(path),
            Request::Append(append) => append.part(path),
            Request::Merge { states, o, lse, sinks } => {
                let (first, rest) = path.split_first()?;
                match *first {
                    "o" => o.part(rest),
                    "states" => states.part(rest),
                    "lse" => lse.as_mut()?.part(rest),
                    "sinks" => sinks.as_mut()?.part(rest),
                    _ => None,
                }
            }
        }
    }
}

/// Applies an assignment such as `k.strides[1]=132`, `o.address=q.address+16` or `q.elements-=1`.
pub fn assign(to: &mut impl Part, text: &str) {
    let (path, value) = text.split_once('=').unwrap_or_else(|| panic!("{text} is no assignment"));
    let (path, operator) = match path.strip_suffix(['+', '-', '*']) {
        Some(rest) => (rest, path.as_bytes()[rest.len()]),
        None => (path, b'='),
    };
    let operand = evaluate(to, value);
    let field = find(to, path).unwrap_or_else(|| panic!("{text}: this request has no {path}"));
    let old = field.number();
    let number = match (operator, old, operand) {
        (b'+', Some(old), Some(n)) => Some(old + n),
        (b'-', Some(old), Some(n)) => Some(old - n),
        (b'*', Some(old), Some(n)) => Some(old * n),
        _ => operand,
    };
    field.set(value, number);
}

fn find<'p>(of: &'p mut impl Part, path: &str) -> Option<&'p mut dyn Leaf> {
    let path = path.replace('[', ".").replace(']', "");
    of.part(&path.split('.').collect::<Vec<_>>())
}

/// Returns the value of a sum of numbers, powers such as `2^40`, and fields.
fn evaluate(of: &mut impl Part, text: &str) -> Option<i128> {
    let mut sum = 0;
    for (n, terms) in text.split('+').enumerate() {
        for (m, term) in terms.split('-').enumerate() {
            let value = match term.split_once('^') {
                _ if term.is_empty() && m == 0 && n == 0 => 0,
                Some((base, exponent)) => base.parse::<i128>().ok()?.pow(exponent.parse().ok()?),
                None => term.parse().ok().or_else(|| find(of, term)?.number())?,
            };
            sum += if m == 0 { value } else { -value };
        }
    }
    Some(sum)
}
