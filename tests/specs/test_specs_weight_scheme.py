"""Bytes of formats, and which tensor has which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.checkpoint.formats import FORMATS as STORED
from rooftree.errors import ConfigError
from rooftree.specs.weight import Weight, linear, norm
from rooftree.specs.weight_format import FORMATS, WeightFormat, cache_bytes, grouped
from rooftree.specs.weight_scheme import WeightScheme, named_scheme, uniform

PROJECTION = linear("self_attn.q_proj", 256, 512, "attention")[0]
HEAD = linear("lm_head", 1000, 512, "head")[0]
EMBEDDING = Weight("model.embed_tokens.weight", (1000, 512), "embedding", kind="embedding")
ROUTER = linear("mlp.gate", 8, 512, "router")[0]
NORM = norm("input_layernorm", 512)[0]
LAYER = "model.layers.3."


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("fp32", 4 * 256 * 512),
        ("bf16", 2 * 256 * 512),
        ("fp8", 256 * 512 + 4),
        ("fp8-channel", 256 * 512 + 2 * 256),
        ("fp8-block", 256 * 512 + 2 * 4 * 4),
        ("int8", 256 * 512 + 2 * 256),
        ("awq", 256 * 512 // 2 + 256 * 4 * 20 // 8),
        ("gptq", 256 * 512 // 2 + 256 * 4 * 20 // 8 + 4 * 512),
        ("mxfp4", 256 * 512 // 2 + 256 * 16),
        ("nvfp4", 256 * 512 // 2 + 256 * 32 + 8),
        ("q4_0", 256 * 16 * 18),
        ("q4_k", 256 * 2 * 144),
        ("q6_k", 256 * 2 * 210),
    ],
)
def test_bytes_of_a_matrix(name: str, num_bytes: int):
    assert FORMATS[name].bytes_of((256, 512)) == num_bytes


@pytest.mark.parametrize("name", [name for name in STORED if name.startswith(("Q", "F16", "F32", "BF16"))])
def test_block_formats_are_those_of_files(name: str):
    """The sizes that the readers of real files use."""
    stored = STORED[name]
    ours = FORMATS[{"F32": "fp32", "F16": "fp16", "BF16": "bf16"}.get(name, name.lower())]
    elements = stored.block * 3
    assert ours.bytes_of((7, elements)) == 7 * 3 * stored.block_bytes


def test_partial_blocks_are_whole_in_bytes():
    assert FORMATS["fp8-block"].bytes_of((129, 127)) == 129 * 127 + 2 * 4
    assert FORMATS["mxfp4"].bytes_of((3, 33)) == -(-3 * 33 * 4 // 8) + 3 * 2
    assert FORMATS["bf16"].bytes_of(()) == 2
    assert FORMATS["bf16"].bytes_of((5,)) == 10


def test_scales_per_tensor_and_per_row_hold_for_vectors():
    assert FORMATS["fp8"].bytes_of((64,)) == 64 + 4
    assert FORMATS["int8"].bytes_of((64,)) == 64 + 2


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 300), st.integers(1, 300), st.integers(1, 3000))
def test_pieces_of_a_fused_tensor_add_up(name: str, first: int, second: int, columns: int):
    """Formats without blocks over rows: the same bytes in one piece or in two, to the byte rounded up."""
    stored = FORMATS[name]
    if stored.block[0] > 1:
        return
    whole = stored.bytes_of((first + second, columns))
    pieces = stored.bytes_of((first, columns)) + stored.bytes_of((second, columns), continues=True)
    extra = stored.block_bits // 8 if stored.block == (0, 0) else 0
    assert whole <= pieces <= whole + 1 + extra


def test_groups_of_a_row():
    assert grouped("x", 4, 0, zeros=False).bytes_of((8, 64)) == 8 * 32 + 8 * 2
    assert (
        grouped("x", 3, 32, zeros=True, tensor_bytes=16).bytes_of((8, 64))
        == 8 * 64 * 3 // 8 + 16 * 19 // 8 + 16
    )


def test_rest_keeps_its_type():
    scheme = named_scheme("fp8", rest="fp16")
    assert scheme.format_of(LAYER, PROJECTION).name == "fp8"
    for weight in (HEAD, EMBEDDING, ROUTER, NORM):
        assert scheme.format_of("", weight).name == "fp16"


def test_gguf_schemes_store_embedding_and_head_too():
    scheme = named_scheme("q4_k")
    assert scheme.format_of("", EMBEDDING).name == "q4_k"
    assert scheme.format_of("", HEAD).name == "q6_k"
    assert scheme.format_of(LAYER, PROJECTION).name == "q4_k"
    assert scheme.format_of(LAYER, NORM).name == "fp32"
    assert scheme.format_of(LAYER, ROUTER).name == "fp32"
    assert named_scheme("q8_0").format_of("", HEAD).name == "q8_0"


@pytest.mark.parametrize(
    ("name", "other"), [("q4_k", "q5_0"), ("q5_k", "q5_1"), ("q6_k", "q8_0"), ("q2_k", "iq4_nl")]
)
def test_rows_that_do_not_fill_blocks_of_256(name: str, other: str):
    narrow = linear("mlp.up_proj", 64, 576, "dense")[0]
    assert named_scheme(name).format_of(LAYER, narrow).name == other


def test_rules_in_their_order():
    fp8, four = FORMATS["fp8"], FORMATS["mxfp4"]
    scheme = WeightScheme(
        "mixed",
        linear=fp8,
        rest=FORMATS["bf16"],
        head=fp8,
        ignore=(r"model\.layers\.3\..*", "lm_head"),
        overrides=((r".*q_proj", four),),
        exact={"model.layers.4.self_attn.q_proj.weight": FORMATS["q8_0"]},
    )
    assert scheme.format_of("model.layers.4.", PROJECTION).name == "q8_0"
    assert scheme.format_of(LAYER, PROJECTION).name == "mxfp4"
    other = linear("self_attn.k_proj", 64, 512, "attention")[0]
    assert scheme.format_of(LAYER, other).name == "bf16"
    assert scheme.format_of("model.layers.5.", other).name == "fp8"
    assert scheme.format_of("", HEAD).name == "bf16"


def test_unknown_names_list_the_known():
    with pytest.raises(ConfigError, match="nvfp4"):
        named_scheme("int3")
    with pytest.raises(ConfigError, match="fp8"):
        cache_bytes(3, "int3")
    assert cache_bytes(3, "nvfp4") == 2
    assert uniform("fp32").name == "fp32"


def test_arithmetic_of_weight_only_formats_is_not_that_of_their_storage():
    names = ("bf16", "awq", "gptq", "mxfp4", "q4_k", "fp8-block", "int8", "nvfp4")
    assert [FORMATS[name].arithmetic for name in names] == [*["bf16"] * 5, "fp8", "int8", "fp4"]
    assert isinstance(FORMATS["bf16"], WeightFormat)
