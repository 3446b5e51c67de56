"""Names of an Architecture's matrices in a GGUF file, by the part that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rooftree.specs.architecture import Architecture, LayerSpec, Mixer
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import DenseFeedForward, FeedForward

# Module, and its names in GGUF: the first that a file has counts.
Names = Iterator[tuple[str, tuple[str, ...]]]

_LATENT = {
    "q_proj": ("attn_q",),
    "q_a_proj": ("attn_q_a",),
    "q_b_proj": ("attn_q_b",),
    "kv_a_proj_with_mqa": ("attn_kv_a_mqa",),
    "kv_b_proj": ("attn_kv_b", "attn_v_b"),
    "o_proj": ("attn_output",),
}
_RECURRENT = {
    "in_proj": ("ssm_in",),
    "in_proj_qkvz": ("ssm_in", "attn_qkv"),
    "in_proj_ba": ("ssm_ba", "ssm_beta"),
    "conv1d": ("ssm_conv1d",),
    "x_proj": ("ssm_x",),
    "dt_proj": ("ssm_dt",),
    "A_log": ("ssm_a",),
    "D": ("ssm_d",),
    "out_proj": ("ssm_out",),
}
_OUTSIDE = {"embedding": "token_embd", "head": "output"}


def matrix_names(architecture: Architecture) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Full tensor name -> stored names, for everything that is not a vector."""
    for index, layer in enumerate(architecture.layers):
        for module, stored in _layer(layer):
            names = tuple(f"blk.{index}.{name}.weight" for name in stored)
            yield f"{architecture.layer_prefix}{index}.{module}.weight", names
    for weight in architecture.outside:
        if weight.role in _OUTSIDE and weight.kind in ("embedding", "linear"):
            yield weight.name, (f"{_OUTSIDE[weight.role]}.weight",)


def counted(names: Iterable[str]) -> list[str]:
    """Those that an Architecture counts: not rotary factors, not layers that predict further tokens."""
    names = list(names)
    extra = {name.split(".")[1] for name in names if ".nextn." in name}
    return [
        name
        for name in names
        if not name.startswith(("rope_freqs", "rope_factors"))
        and not ("blk." in name and name.split(".")[1] in extra)
        and "attn_rot_embd" not in name
    ]


def _layer(layer: LayerSpec) -> Names:
    if layer.mixer is not None:
        yield from _mixer(layer.mixer)
    if layer.feed_forward is not None:
        yield from _feed_forward(layer.feed_forward)


def _mixer(mixer: Mixer) -> Names:
    if isinstance(mixer, Attention):
        for module, name in zip(mixer.names, ("attn_q", "attn_k", "attn_v", "attn_output"), strict=True):
            yield module, ("attn_qkv", name) if name != "attn_output" else (name,)
    elif isinstance(mixer, LatentAttention):
        yield from ((f"self_attn.{name}", stored) for name, stored in _LATENT.items())
    else:
        yield from ((f"{mixer.name}.{name}", stored) for name, stored in _RECURRENT.items())


def _feed_forward(part: FeedForward) -> Names:
    if isinstance(part, DenseFeedForward):
        yield from _network(part.names, "")
        return
    yield part.router, ("ffn_gate_inp",)
    yield part.shared_gate_name, ("ffn_gate_inp_shexp",)
    yield from zip(part.latent_names, (("ffn_latent_down",), ("ffn_latent_up",)), strict=True)
    yield from _network(part.names, "_exps")
    yield from _network(part.shared_names, "_shexp")


def _network(names: tuple[str, ...], suffix: str) -> Names:
    """Gate, up and down; a fused gate and up is stored as one of the two, or as both."""
    *up, down = names
    stored = ("ffn_gate", "ffn_up") if len(up) == 2 else ("ffn_up",)
    for module, name in zip(up, stored, strict=True):
        yield module, (f"{name}{suffix}", f"ffn_gate_up{suffix}", f"ffn_up{suffix}")
    yield down, (f"ffn_down{suffix}",)
