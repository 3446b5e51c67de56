"""Rotary frequencies of a ``RopeSpec``, and the cosine and sine tables that the backends read."""

from __future__ import annotations

import math

import numpy as np

from rooftree.kernels.ops import Floats
from rooftree.specs.model import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Floats:
    """Radians per position of each pair, (head_dim / 2,) float32, scaled as ``rope.kind`` says."""
    base = 1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    base = base.astype(np.float32)
    if rope.kind == "linear":
        return (base / np.float32(rope.factor)).astype(np.float32)
    if rope.kind == "llama3":
        return _llama3(rope, base)
    if rope.kind == "yarn":
        return _yarn(rope, base, head_dim)
    if rope.freq_factors:
        return (base / np.asarray(rope.freq_factors, np.float32)).astype(np.float32)
    return base


def _llama3(rope: RopeSpec, base: Floats) -> Floats:
    """Llama 3.1: waves longer than the trained context / low_freq_factor are stretched, short ones kept."""
    wavelength = 2.0 * math.pi / base.astype(np.float64)
    span = rope.original_max_position
    smooth = (span / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1.0 - smooth) * base / rope.factor + smooth * base
    long, short = span / rope.low_freq_factor, span / rope.high_freq_factor
    scaled = np.where(wavelength > long, base / rope.factor, np.where(wavelength < short, base, blended))
    return scaled.astype(np.float32)


def _yarn(rope: RopeSpec, base: Floats, head_dim: int) -> Floats:
    """NTK-by-parts (Peng et al., 2023, section 3.2): pairs that turn often are kept, slow ones stretched."""

    def pair_that_turns(turns: float) -> float:
        return (
            head_dim
            * math.log(rope.original_max_position / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low = max(math.floor(pair_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(rope.beta_slow)), head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return (base / rope.factor * ramp + base * (1.0 - ramp)).astype(np.float32)


def rope_tables(rope: RopeSpec, head_dim: int, num_positions: int) -> tuple[Floats, Floats]:
    """Cosines and sines, each (num_positions, head_dim / 2) float32."""
    angles = np.outer(np.arange(num_positions, dtype=np.float32), inverse_frequencies(rope, head_dim))
    scale = np.float32(rope.attention_factor)
    return np.cos(angles) * scale, np.sin(angles) * scale
