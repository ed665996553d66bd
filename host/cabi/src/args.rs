//! Reads structs from callers of any version, and converts their fields.
use crate::call::invalid;
use crate::layout::Field;
use ferroflash::plan::{AnyRequest, Request};
use ferroflash::request::{KvScale, LseView, Splits, TensorView, TokenScales};
use ferroflash::{DType, Error};
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

/// A struct of `ferroflash.h`. New versions append fields; they never change others.
///
/// # Safety
/// - The struct is `repr(C)`, and zero bytes are a valid value of every field.
pub unsafe trait Args: Copy {
    /// Its name in C, between `ferroflash_` and `_t`.
    const NAME: &str;
    /// The name of the size field.
    const SIZE: &str;
    /// The smallest valid size of the struct in bytes. A caller may omit the fields that begin after these
    /// bytes.
    const LEAST: usize;
    /// All fields, in order.
    const FIELDS: &[Field];
}

/// A struct that describes a request.
pub(crate) trait Ask: Args {
    /// The request.
    type Request<'a>: Request + Into<AnyRequest<'a>>;

    /// Converts the struct to a request. Checks only the rules that the request's types cannot express.
    ///
    /// # Safety
    /// The struct's pointers to host memory are null or valid:
    /// - `config` is a string that lives for `'a`.
    /// - `forward` is a struct with the number of bytes that its size field states, and with such a `config`.
    /// - `states` points to `count` structs of `state_size` bytes.
    unsafe fn request<'a>(&self) -> Result<Self::Request<'a>, Error>;
}

/// Copies the fields that the caller's struct has. All other fields are 0.
///
/// # Safety
/// - `pointer` is null, or points to a struct that begins with its size, a u64.
pub(crate) unsafe fn read<A: Args>(pointer: *const A) -> Result<A, Error> {
    if pointer.is_null() {
        return Err(invalid(A::NAME, "NULL", "it must not be null"));
    }
    // SAFETY: the pointer is not null, and the size is the first field.
    let size = unsafe { pointer.cast::<u64>().read() };
    let ours = size_of::<A>();
    let is_whole = size.is_multiple_of(align_of::<A>() as u64);
    if size < A::LEAST as u64 || size > 1 << 16 || !is_whole {
        let (name, macros) = (A::NAME, A::NAME.to_uppercase());
        let expected =
            format_args!("it must be sizeof(ferroflash_{name}_t), here {ours}; use FERROFLASH_{macros}_INIT");
        return Err(invalid(A::SIZE, size, expected));
    }
    // SAFETY: the caller promises this number of bytes.
    unsafe { copy(pointer, size as usize) }
}

/// Copies the fields that both sides know, from a struct of `size` bytes. All other fields are 0.
///
/// # Safety
/// - `pointer` points to `size` bytes.
pub(crate) unsafe fn copy<A: Args>(pointer: *const A, size: usize) -> Result<A, Error> {
    let (ours, name) = (size_of::<A>(), A::NAME);
    // SAFETY: the caller promises that `pointer` points to `size` bytes.
    let known = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if known.iter().skip(ours).any(|byte| *byte != 0) {
        let field = format_args!("an unknown field in a ferroflash_{name}_t of {size} bytes");
        let version = env!("CARGO_PKG_VERSION");
        let reason = format_args!(
            "this library is version {version} and knows {ours} bytes of the struct; set the fields behind \
             them to 0, or use a newer library"
        );
        return Err(Error::unsupported(field, reason));
    }
    let mut args = MaybeUninit::<A>::zeroed();
    // SAFETY: both sides have this number of bytes, and zero bytes are a valid value of every field.
    unsafe {
        args.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(known.as_ptr(), size.min(ours));
        Ok(args.assume_init())
    }
}

/// Returns the entry of `all` with the number of a `FERROFLASH_` constant.
pub(crate) fn constant<T: Copy>(
    what: &'static str,
    value: i32,
    all: &[T],
    expected: &str,
) -> Result<T, Error> {
    let found = usize::try_from(value).ok().and_then(|at| all.get(at)).copied();
    found.ok_or_else(|| invalid(what, value, expected))
}

/// Returns the element type of a `FERROFLASH_` constant.
pub(crate) fn dtype(what: &'static str, value: i32) -> Result<DType, Error> {
    let expected = "it must be FERROFLASH_F16, _BF16, _E4M3, _INT8 (caches), _E4M3_SCALED (latent caches) or \
                    _F32 (partial states)";
    let all = [DType::F16, DType::Bf16, DType::E4m3, DType::F32, DType::Int8, DType::E4m3Scaled];
    constant(what, value, &all, expected)
}

/// Returns a name, or `None` for a null pointer.
///
/// # Safety
/// - `text` is null or a string that lives for `'a`.
pub(crate) unsafe fn name<'a>(what: &'static str, text: *const c_char) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not null, and the caller promises a string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| invalid(what, format!("{text:?}"), "it must be UTF-8"))
}

/// Returns the rows of a dense cache.
///
/// # Errors
/// [`Error::Unsupported`] beside a block table, whose rows name the pages of sequences.
pub(crate) fn cache_rows(rows: *const i32, table: *const i32) -> Result<Option<u64>, Error> {
    let rows = present(rows);
    if rows.is_none() || present(table).is_none() {
        return Ok(rows);
    }
    let reason = "a row of the table names the pages of a sequence; leave cache_batch_idx NULL, and reorder \
                  the table's rows";
    Err(Error::unsupported("cache_batch_idx beside block_table", reason))
}

/// Returns the address of memory, or `None` if it is null.
pub(crate) fn present<T>(pointer: *const T) -> Option<u64> {
    (!pointer.is_null()).then_some(pointer as u64)
}

/// Returns the scale of a KV cache of a dtype: device memory if the pointer `scales` is not null, otherwise
/// `value`. A value of 0 means 1. The extents of scales in memory are `tokens` for an int8 cache, and `heads`
/// for other caches. Scales of an int8 cache with two strides of 0 are contiguous.
pub(crate) fn kv_scale(
    dtype: DType,
    (value, scales): (f32, *const f32),
    strides: [i64; 2],
    [tokens, heads]: [[usize; 2]; 2],
) -> KvScale {
    match (present(scales), value, dtype) {
        (Some(address), 0.0, DType::Int8) => {
            let strides = if strides == [0; 2] { [tokens[1] as i64, 1] } else { strides };
            KvScale::Tokens(TokenScales::new(address, reach(&tokens, &strides), strides))
        }
        (Some(address), _, other) if other != DType::Int8 => {
            KvScale::Device { address, elements: reach(&heads, &strides), strides }
        }
        (_, 0.0, _) => KvScale::One,
        (_, value, _) => KvScale::Value(value),
    }
}

/// Returns whether integers have 64 bits.
pub(crate) fn is_wide(what: &'static str, value: i32) -> Result<bool, Error> {
    constant(what, value, &[false, true], "it must be 0 for i32, or 1 for i64")
}

/// Returns the splits of a sequence: keys per split, or a number of splits. If both are 0, the library
/// decides.
pub(crate) fn splits_of(split_keys: i32, splits: i32) -> Result<Splits, Error> {
    match (u32::try_from(splits), u32::try_from(split_keys)) {
        (Ok(0), Ok(0)) => Ok(Splits::Auto),
        (Ok(count), Ok(0)) => Ok(Splits::Exactly(count)),
        (Ok(0), Ok(keys)) => Ok(Splits::Keys(keys)),
        (Err(_), _) => Err(invalid("splits", splits, "it must be 0 or more")),
        _ => Err(invalid("split_keys", split_keys, "it must be 0 or more, and 0 if splits is set")),
    }
}

/// Returns a size of a tensor.
pub(crate) fn extent(what: &'static str, value: i64) -> Result<usize, Error> {
    usize::try_from(value).map_err(|_| invalid(what, value, "it must be 1 or more"))
}

/// Returns the number of elements from the first element to the end of the last one. C callers state no
/// buffer sizes, so this function assumes that buffers reach as far as the strides. If strides and extents
/// overflow here, later checks refuse them.
pub(crate) fn reach(shape: &[usize], strides: &[i64]) -> u64 {
    shape.iter().zip(strides).fold(1u64, |sum, (extent, stride)| {
        sum.saturating_add((extent.saturating_sub(1) as u64).saturating_mul(stride.unsigned_abs()))
    })
}

/// Returns one number for each row, `[batch, heads, rows]`, with the strides of a batch, a head and a row.
pub(crate) fn rows_of(address: u64, shape: [usize; 3], [batch, head, row]: [i64; 3]) -> LseView {
    LseView::new(address, reach(&shape, &[batch, head, row]), shape, [batch, head]).row_stride(row)
}

/// Returns a tensor that reaches as far as its strides.
pub(crate) fn view(address: *const c_void, dtype: DType, shape: [usize; 4], strides: [i64; 4]) -> TensorView {
    TensorView::new(address as u64, reach(&shape, &strides), dtype, shape, strides)
}

/// Returns a view of `[tokens, heads, head_dim]`, with the strides of a token and of a head.
pub(crate) fn at_tokens(
    address: *const c_void,
    dtype: DType,
    [tokens, heads, head_dim]: [usize; 3],
    [token, head]: [i64; 2],
) -> TensorView {
    view(address, dtype, [1, tokens, heads, head_dim], [0, token, head, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_table_has_no_rows_beside_it() {
        let (none, some) = (std::ptr::null(), std::ptr::dangling());
        assert_eq!(cache_rows(none, some).map_err(|e| e.to_string()), Ok(None));
        assert_eq!(cache_rows(some, none).map_err(|e| e.to_string()), Ok(Some(align_of::<i32>() as u64)));
        assert!(cache_rows(some, some).is_err());
    }
}
