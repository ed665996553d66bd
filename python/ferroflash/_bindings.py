"""The constants, structs and functions of ferroflash.h, for ctypes.

Generated: `BLESS=1 cargo test -p ferroflash-cabi --test bindings` writes this file.
"""
from ctypes import Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
OK = 0
INVALID = 1
UNSUPPORTED = 2
DRIVER = 3
INTERNAL = 4
F16 = 0
BF16 = 1
E4M3 = 2
INT8 = 4
F32 = 3
E4M3_SCALED = 5
LSE_NATURAL = 0
LSE_BASE_TWO = 1
ROTARY_HALVES = 0
ROTARY_INTERLEAVED = 1
MASK_FULL = 0
MASK_CAUSAL = 1
MASK_WINDOW = 3
MASK_PREFIX = 4
MASK_CHUNKED = 5
MASK_BITS = 6
BOTTOM_RIGHT = 0
TOP_LEFT = 1
INVARIANCE_NONE = 0
INVARIANCE_BATCH = 1
INVARIANCE_BATCH_AND_CHUNKS = 2
PRECISION_INPUTS = 0
PRECISION_INT8_FP8 = 1
PRECISION_FP8 = 2
PRECISION_INT8_F16 = 3


class Attention(Structure):
    """ferroflash_attention_t"""

    _fields_ = [
        ("size", c_uint64),
        ("q", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("batch", c_int64),
        ("seqlen_q", c_int64),
        ("seqlen_k", c_int64),
        ("heads_q", c_int64),
        ("heads_k", c_int64),
        ("head_dim", c_int64),
        ("q_strides", c_int64 * 4),
        ("k_strides", c_int64 * 4),
        ("v_strides", c_int64 * 4),
        ("o_strides", c_int64 * 4),
        ("lse_strides", c_int64 * 2),
        ("dtype", c_int32),
        ("mask", c_int32),
        ("window_left", c_int32),
        ("window_right", c_int32),
        ("alignment", c_int32),
        ("cache_dtype", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("config", c_char_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("counters", c_void_p),
        ("counters_bytes", c_uint64),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("seqused_k", c_void_p),
        ("total_q", c_int64),
        ("total_k", c_int64),
        ("block_table", c_void_p),
        ("cache_batch_idx", c_void_p),
        ("pages", c_int64),
        ("page", c_int64),
        ("columns", c_int64),
        ("table_stride", c_int64),
        ("splits", c_int32),
        ("split_keys", c_int32),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("scales_strides", c_int64 * 2),
        ("sinks", c_void_p),
        ("alibi_slopes", c_void_p),
        ("alibi_strides", c_int64 * 2),
        ("bias", c_void_p),
        ("bias_strides", c_int64 * 3),
        ("prefix_lengths", c_void_p),
        ("mask_bits", c_void_p),
        ("mask_bits_strides", c_int64 * 3),
        ("mask_bits_keys", c_int64),
        ("bias_dtype", c_int32),
        ("mask_length", c_int32),
        ("head_dim_v", c_int64),
        ("rest_lengths", c_void_p),
        ("prefix_groups", c_int64),
        ("prefix_pages", c_int64),
        ("max_logits", c_void_p),
        ("max_logits_strides", c_int64 * 2),
        ("indices", c_void_p),
        ("topk", c_int64),
        ("entropy", c_void_p),
        ("entropy_strides", c_int64 * 2),
        ("invariance", c_int32),
        ("precision", c_int32),
        ("seqused_q", c_void_p),
        ("max_logits_head", c_void_p),
        ("q_descale", c_void_p),
        ("k_descale", c_void_p),
        ("v_descale", c_void_p),
        ("q_descale_strides", c_int64 * 2),
        ("k_descale_strides", c_int64 * 2),
        ("v_descale_strides", c_int64 * 2),
        ("output_f16", c_int32),
    ]


class PlanInfo(Structure):
    """ferroflash_plan_info_t"""

    _fields_ = [
        ("size", c_uint64),
        ("entry", c_char_p),
        ("reason", c_char_p),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("smem_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("counters_bytes", c_uint64),
    ]


class Backward(Structure):
    """ferroflash_backward_t"""

    _fields_ = [
        ("size", c_uint64),
        ("forward", c_void_p),
        ("d_o", c_void_p),
        ("dq", c_void_p),
        ("dk", c_void_p),
        ("dv", c_void_p),
        ("d_o_strides", c_int64 * 4),
        ("dq_strides", c_int64 * 4),
        ("dk_strides", c_int64 * 4),
        ("dv_strides", c_int64 * 4),
        ("d_lse", c_void_p),
        ("d_lse_strides", c_int64 * 2),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("dsinks", c_void_p),
        ("dbias", c_void_p),
        ("dbias_strides", c_int64 * 3),
    ]


class Append(Structure):
    """ferroflash_append_t"""

    _fields_ = [
        ("size", c_uint64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("slots", c_void_p),
        ("tokens", c_int64),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("pages", c_int64),
        ("page", c_int64),
        ("k_strides", c_int64 * 2),
        ("v_strides", c_int64 * 2),
        ("cache_strides", c_int64 * 3),
        ("dtype", c_int32),
        ("cache_dtype", c_int32),
        ("wide_slots", c_int32),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("head_dim_v", c_int64),
        ("rotary_cos", c_void_p),
        ("rotary_sin", c_void_p),
        ("positions", c_void_p),
        ("q", c_void_p),
        ("rotated_q", c_void_p),
        ("rotary_rows", c_int64),
        ("rotary_dims", c_int64),
        ("rotary_stride", c_int64),
        ("rotary_first", c_int64),
        ("heads_q", c_int64),
        ("q_strides", c_int64 * 2),
        ("rotated_q_strides", c_int64 * 2),
        ("rotary_dtype", c_int32),
        ("rotary_style", c_int32),
        ("wide_positions", c_int32),
        ("reserved", c_int32),
    ]


class State(Structure):
    """ferroflash_state_t"""

    _fields_ = [
        ("o", c_void_p),
        ("lse", c_void_p),
        ("o_strides", c_int64 * 4),
        ("lse_strides", c_int64 * 3),
    ]


class Merge(Structure):
    """ferroflash_merge_t"""

    _fields_ = [
        ("size", c_uint64),
        ("states", c_void_p),
        ("count", c_uint64),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("sinks", c_void_p),
        ("batch", c_int64),
        ("seqlen", c_int64),
        ("heads", c_int64),
        ("head_dim", c_int64),
        ("o_strides", c_int64 * 4),
        ("lse_strides", c_int64 * 3),
        ("states_dtype", c_int32),
        ("dtype", c_int32),
        ("states_lse_unit", c_int32),
        ("lse_unit", c_int32),
        ("state_size", c_uint64),
    ]


# The type of the result and of the arguments of each function.
FUNCTIONS = {
    "ferroflash_abi_version": (c_uint32, []),
    "ferroflash_version": (c_char_p, []),
    "ferroflash_attention_size": (c_size_t, []),
    "ferroflash_plan_info_size": (c_size_t, []),
    "ferroflash_backward_size": (c_size_t, []),
    "ferroflash_append_size": (c_size_t, []),
    "ferroflash_merge_size": (c_size_t, []),
    "ferroflash_last_error": (c_char_p, []),
    "ferroflash_entry_count": (c_size_t, []),
    "ferroflash_entry_name": (c_char_p, [c_size_t]),
    "ferroflash_context_create": (c_int, [c_void_p]),
    "ferroflash_context_destroy": (None, [c_void_p]),
    "ferroflash_context_create_profile": (c_int, [c_void_p, c_void_p]),
    "ferroflash_context_create_simulator": (c_int, [c_void_p, c_void_p]),
    "ferroflash_simulator_allocate": (c_int, [c_void_p, c_uint64, c_void_p]),
    "ferroflash_simulator_free": (c_int, [c_void_p, c_uint64]),
    "ferroflash_simulator_write": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64]),
    "ferroflash_simulator_read": (c_int, [c_void_p, c_uint64, c_void_p, c_uint64]),
    "ferroflash_plan_create": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ferroflash_plan_destroy": (None, [c_void_p]),
    "ferroflash_plan_describe": (c_int, [c_void_p, c_void_p]),
    "ferroflash_scratch_size": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "ferroflash_load": (c_int, [c_void_p, c_void_p]),
    "ferroflash_launch": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "ferroflash_attention": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ferroflash_backward_plan_create": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ferroflash_backward_launch": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "ferroflash_backward": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ferroflash_append": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ferroflash_merge": (c_int, [c_void_p, c_void_p, c_void_p]),
}
