"""Models of transformers on the CPU, with FerroFlash in the simulator, against their eager attention in float32.

`pip install torch transformers` and `python3 -m pytest python/tests` run it.
"""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import ferroflash

ferroflash.register_with_transformers(device="sim")
SIZES = {"vocab_size": 100, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 512, "pad_token_id": 0}
# The class of a model and the options of its config. Windows are shorter than the tokens.
MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 7},
    "Gemma2": {"sliding_window": 7, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 64},
}
IDS = torch.randint(1, 100, (2, 24), generator=torch.Generator().manual_seed(1))
PADDED = torch.ones_like(IDS)
PADDED[0, :5] = 0


def models(name):
    """Returns two models of equal weights: eager attention in float32, FerroFlash's in float16."""
    for attention, dtype in (("eager", torch.float32), ("ferro", torch.float16)):
        torch.manual_seed(1)
        config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name], attn_implementation=attention)
        yield getattr(transformers, f"{name}ForCausalLM")(config).half().to(dtype)


CASES = [("Llama", None), ("Llama", PADDED), ("Mistral", None), ("Mistral", PADDED), ("Gemma2", None)]


@pytest.mark.parametrize("name, mask", CASES)
def test_logits_and_gradients(name, mask):
    # The loss of a row is that of the next token, and rows of padding differ: eager attention gives them all keys.
    labels = IDS if mask is None else IDS.masked_fill((mask == 0) | (mask.cumsum(1) == 1), -100)
    # float16 has too few small numbers for the gradients of a mean.
    exact, ours = ((out.logits, torch.autograd.grad(out.loss * 1000, [*model.parameters()][1]))
                   for model in models(name) for out in [model(IDS, attention_mask=mask, labels=labels)])
    rows = slice(0 if mask is None else 5, None)
    for a, b in ((exact[0][:, rows], ours[0][:, rows]), (exact[1][0], ours[1][0])):
        error, most = (a - b.float()).abs().max(), a.abs().max()
        assert error <= 0.02 * most, f"{error} of {most}"


@pytest.mark.parametrize("name, mask", [*CASES, ("Gemma2", PADDED)])
def test_generation(name, mask):
    mask = torch.ones_like(IDS) if mask is None else mask
    exact, ours = (model.generate(IDS, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False)
                   for model in models(name))
    assert torch.equal(exact, ours)


def test_gradients_of_softcap_with_padding_are_refused():
    _, ours = models("Gemma2")
    with pytest.raises(NotImplementedError, match="softcap with mask_bits"):
        ours(IDS, attention_mask=PADDED).logits.sum().backward()


def test_packed_sequences():
    """Position ids that begin again, and offsets, describe the same sequences."""
    (exact, ours), positions = models("Llama"), torch.cat([torch.arange(10), torch.arange(14)])[None]
    ends = torch.tensor([0, 10, 24], dtype=torch.int32)
    offsets = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 14, "max_length_k": 14}
    right = exact(IDS[:1], position_ids=positions, use_cache=False).logits
    for options in ({}, offsets):
        found = ours(IDS[:1], position_ids=positions, use_cache=False, **options).logits
        assert (right - found.float()).abs().max() <= 0.02 * right.abs().max()


def test_plain_masks_are_not_made():
    plain = {"batch_size": 1, "q_length": 3, "kv_length": 9, "q_offset": 6, "device": "cpu"}
    mask = lambda **options: ferroflash._transformers.mask(**{**plain, **options})
    config = transformers.MistralConfig(sliding_window=4)
    assert mask() is None and mask(attention_mask=torch.ones(1, 9, dtype=torch.bool)) is None
    assert mask(local_size=4, config=config) is None and mask(local_size=4).shape == (1, 1, 3, 2)
    assert mask(q_offset=0).flatten().tolist() == [1, 0, 3, 0, 7, 0]
    assert mask(allow_is_causal_skip=False).flatten().tolist() == [127, 0, 255, 0, 255, 1]
