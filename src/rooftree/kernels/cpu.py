"""Op set backend that records a step program for the native CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, cast

import numpy as np

from rooftree import _native
from rooftree.checkpoint.base import DType, Tensor
from rooftree.checkpoint.formats import is_quantized, row_bytes
from rooftree.checkpoint.quantize_on_load import RoundedTensor
from rooftree.errors import ModelError
from rooftree.kernels.arena import Lifetime, plan_arena
from rooftree.kernels.ops import Floats

FORMAT_CODES = {
    "F32": 0,
    "F16": 1,
    "BF16": 2,
    "Q4_0": 3,
    "Q4_1": 4,
    "Q8_0": 5,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q4_K": 8,
    "Q5_K": 9,
    "Q6_K": 10,
    "F8_E4M3": 11,
    "MXFP4": 12,
    "NVFP4": 13,
}
KV_FORMAT_CODES = {"fp16": 0, "bf16": 4, "fp32": 1, "int8": 2, "fp8": 3}

_FP8_STEP = 128
"""``kFp8Step`` of native/pack.h."""

_TILE_ROWS = 16
"""``kTileRows`` of native/pack.h: packed matrices are whole tiles."""

_PIECE_BYTES = 4 << 20
"""Stored bytes that each thread packs at once: many tiles, but little beside a model."""

_ABSENT = np.zeros(0, np.float32)

Slot = int
"""Number of a stretch of memory in the program under construction."""

Locate = Callable[[Slot | None], int]
"""The native value of a slot, or -1 where nothing reads it."""

RecordedOp = Callable[[_native.Program, Locate], None]

Form = Literal["floats", "quantised", "rounded"]
"""Of a value: float32 rows, panels of int8 blocks, panels of bf16 pairs."""


@dataclass(frozen=True, slots=True)
class CpuMatrix:
    """A packed weight, and the form of the inputs that it is multiplied with."""

    packed: _native.PackedMatrix
    takes: Form


@dataclass(slots=True)
class CpuValue:
    """A value in the forms that its readers may need; a form that none reads takes no memory."""

    columns: int
    per_sample: bool
    forms: dict[Form, Slot]

    @property
    def floats(self) -> Slot:
        return self.forms["floats"]

    def located(self, at: Locate) -> tuple[int, int, int]:
        """Its native values: floats, quantised, rounded; -1 where nothing reads the form."""
        return at(self.floats), at(self.forms.get("quantised")), at(self.forms.get("rounded"))


@dataclass(slots=True)
class _SlotUse:
    row_bytes: int
    per_sample: bool
    first_op: int = -1
    last_op: int = -1

    @property
    def is_read(self) -> bool:
        """Whether any op but its producer touches it."""
        return self.last_op > self.first_op


def _refuse_narrow_scales(tensor: Tensor) -> None:
    """Raises ModelError where the scale of FP8 weights would change within a step of the kernels."""
    if tensor.dtype != "F8_E4M3" or tensor.scales is None:
        return
    columns, k = tensor.scales.block[1], tensor.shape[1]
    if columns < k and columns % _FP8_STEP:
        raise ModelError(
            f"{tensor.source}: has a scale for every {columns} of {k} columns; the kernels take one for the "
            f"whole row or for every multiple of {_FP8_STEP} (--quantization q8_0 runs it, rounded)"
        )


class CpuRecorder:
    """Records ops, plans memory once the last one is known, and builds the native program.

    A recorded op is a function of the finished memory plan: a producer such as a norm learns only then which
    forms of its result (float, int8, bf16) are read, and computes no other.

    Args:
        isa: of the kernels that the program is for.

    Attributes:
        memory: where the packed matrices lie.
    """

    def __init__(
        self, pool: _native.ThreadPool, isa: str, *, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        self.memory = _native.WeightMemory()
        self._pool, self._isa = pool, isa
        self._rounds = _native.multiplies_bf16(isa)
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._slots: list[_SlotUse] = []
        self._ops: list[RecordedOp] = []
        self._matrices: dict[str, CpuMatrix] = {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return sum(matrix.packed.nbytes for matrix in self._matrices.values())

    # -- values

    def _slot(self, row_bytes: int, per_sample: bool) -> Slot:
        self._slots.append(_SlotUse(row_bytes, per_sample))
        return len(self._slots) - 1

    def _float_value(self, columns: int, per_sample: bool) -> CpuValue:
        return CpuValue(columns, per_sample, {"floats": self._slot(4 * columns, per_sample)})

    def _any_value(self, columns: int, per_sample: bool) -> CpuValue:
        """A value whose producer can write every form."""
        value = self._float_value(columns, per_sample)
        if columns % 32 == 0:
            value.forms["quantised"] = self._slot(_native.quantised_row_bytes(columns), per_sample)
        if self._rounds:
            value.forms["rounded"] = self._slot(_native.rounded_row_bytes(columns), per_sample)
        return value

    def _record(self, touched: Sequence[Slot | None], op: RecordedOp) -> None:
        now = len(self._ops)
        for slot in touched:
            if slot is not None:
                use = self._slots[slot]
                use.first_op = now if use.first_op < 0 else use.first_op
                use.last_op = now
        self._ops.append(op)

    def _input_for(self, x: CpuValue, weight: CpuMatrix) -> Slot:
        """The form of x that the weight multiplies; made of floats the first time that it is asked for."""
        if weight.takes not in x.forms:
            quantised = weight.takes == "quantised"
            row_bytes = (_native.quantised_row_bytes if quantised else _native.rounded_row_bytes)(x.columns)
            source, k = x.floats, x.columns
            x.forms[weight.takes] = out = self._slot(row_bytes, x.per_sample)
            self._record(
                (source, out),
                lambda p, at: p.add_narrow(
                    at(source), k, at(out) if quantised else -1, -1 if quantised else at(out)
                ),
            )
        return x.forms[weight.takes]

    def _takes(self, dtype: DType) -> Form:
        if is_quantized(dtype):
            return "quantised"
        return "rounded" if dtype == "BF16" and self._rounds else "floats"

    # -- the op set

    def matrix(self, tensor: Tensor) -> CpuMatrix:
        if tensor.name not in self._matrices:
            _refuse_narrow_scales(tensor)
            self._matrices[tensor.name] = CpuMatrix(self._pack(tensor), self._takes(tensor.dtype))
        return self._matrices[tensor.name]

    def _pack(self, tensor: Tensor) -> _native.PackedMatrix:
        """Copy a tensor into tiles in pieces, so that of what it is stored as only one need be in memory.

        What is to be rounded is rounded on the way, by native code.
        """
        n, k = tensor.shape
        stored = tensor.stored if isinstance(tensor, RoundedTensor) else tensor
        scales = () if stored.scales is None else (stored.scales.values, *stored.scales.block)
        packed = _native.PackedMatrix(FORMAT_CODES[tensor.dtype], n, k, self.memory)
        tile_bytes = _TILE_ROWS * row_bytes(stored.dtype, k)
        rows = max(1, self._pool.size * _PIECE_BYTES // tile_bytes) * _TILE_ROWS
        for first in range(0, n, rows):
            last = min(first + rows, n)
            packed.pack_rows(first, FORMAT_CODES[stored.dtype], stored.rows(first, last), self._pool, *scales)
            stored.give_back(first, last)
        return packed

    def embed(self, table: CpuMatrix) -> CpuValue:
        y = self._float_value(table.packed.k, per_sample=False)
        self._record((y.floats,), lambda p, at: p.add_embed(table.packed, at(y.floats)))
        return y

    def rms_norm(self, x: CpuValue, weight: Floats, eps: float) -> CpuValue:
        y = self._any_value(x.columns, x.per_sample)
        self._record(
            (x.floats, *y.forms.values()),
            lambda p, at: p.add_rms_norm(at(x.floats), weight, eps, *y.located(at)),
        )
        return y

    def linear(self, x: CpuValue, weights: Sequence[CpuMatrix], biases: Sequence[Floats | None]) -> CpuValue:
        y = self._float_value(sum(w.packed.n for w in weights), x.per_sample)
        column = 0
        for _, group in groupby(zip(weights, biases, strict=True), key=lambda pair: pair[0].takes):
            members = list(group)
            self._linear(x, members, y.floats, column, accumulate=False)
            column += sum(w.packed.n for w, _ in members)
        return y

    def _linear(
        self,
        x: CpuValue,
        members: list[tuple[CpuMatrix, Floats | None]],
        out: Slot,
        column: int,
        *,
        accumulate: bool,
    ) -> None:
        source = self._input_for(x, members[0][0])
        packed = [w.packed for w, _ in members]
        biases = [_present(bias) for _, bias in members]
        self._record(
            (source, out), lambda p, at: p.add_linear(at(source), packed, biases, at(out), column, accumulate)
        )

    def linear_add(self, residual: CpuValue, x: CpuValue, weight: CpuMatrix, bias: Floats | None) -> CpuValue:
        self._linear(x, [(weight, bias)], residual.floats, 0, accumulate=True)
        return CpuValue(residual.columns, residual.per_sample, {"floats": residual.floats})

    def gated_mlp(
        self, x: CpuValue, gate: CpuMatrix, up: CpuMatrix, gate_bias: Floats | None, up_bias: Floats | None
    ) -> CpuValue:
        gate_in, up_in = self._input_for(x, gate), self._input_for(x, up)
        y = self._any_value(gate.packed.n, x.per_sample)
        gb, ub = _present(gate_bias), _present(up_bias)
        self._record(
            (gate_in, up_in, *y.forms.values()),
            lambda p, at: p.add_gated(at(gate_in), at(up_in), gate.packed, up.packed, gb, ub, *y.located(at)),
        )
        return y

    def rope_and_cache(
        self, qkv: CpuValue, layer: int, q_norm: Floats | None, k_norm: Floats | None, eps: float
    ) -> CpuValue:
        qn, kn = _present(q_norm), _present(k_norm)
        self._record((qkv.floats,), lambda p, at: p.add_rope_and_cache(at(qkv.floats), layer, qn, kn, eps))
        return qkv

    def attention(self, qkv: CpuValue, layer: int, window: int | None) -> CpuValue:
        y = self._float_value(self._heads * self._head_dim, per_sample=False)
        self._record(
            (qkv.floats, y.floats),
            lambda p, at: p.add_attention(at(qkv.floats), layer, window or 0, at(y.floats)),
        )
        return y

    def select_sampled(self, x: CpuValue) -> CpuValue:
        y = self._float_value(x.columns, per_sample=True)
        self._record((x.floats, y.floats), lambda p, at: p.add_select(at(x.floats), at(y.floats)))
        return y

    def sample(self, logits: CpuValue) -> None:
        """End the program: a token is chosen from each row of logits, (num_sampled, vocab_size)."""
        self._record((logits.floats,), lambda p, at: p.add_sample(at(logits.floats), logits.columns))

    # -- the program

    def build(
        self, max_tokens: int, max_samples: int, cos: Floats, sin: Floats
    ) -> tuple[_native.Program, int]:
        """Plan memory for the largest step; returns the native program and the bytes of its arena.

        Args:
            cos, sin: (positions, head_dim / 2) float32.
        """
        program = _native.Program(self._pool, self._isa, max_tokens, max_samples)
        offsets, arena_bytes = self._plan(max_tokens, max_samples)
        native = {
            i: program.add_value(offset, self._slots[i].row_bytes, self._slots[i].per_sample)
            for i, offset in offsets.items()
        }

        def locate(slot: Slot | None) -> int:
            return -1 if slot is None else native.get(slot, -1)

        program.set_heads(self._heads, self._kv_heads, self._head_dim, cos.reshape(-1), sin.reshape(-1))
        for op in self._ops:
            op(program, locate)
        program.finish(arena_bytes)
        return program, arena_bytes

    def arena_bytes(self, max_tokens: int, max_samples: int) -> int:
        """Bytes of the arena that ``build`` takes for such steps."""
        return self._plan(max_tokens, max_samples)[1]

    def _plan(self, max_tokens: int, max_samples: int) -> tuple[dict[Slot, int], int]:
        """Where each slot that is read lies, and the bytes of all."""
        read = [i for i, use in enumerate(self._slots) if use.is_read]
        lifetimes = []
        for i in read:
            use = self._slots[i]
            rows = max_samples if use.per_sample else max_tokens
            lifetimes.append(Lifetime(rows * use.row_bytes, use.first_op, use.last_op))
        offsets, arena_bytes = plan_arena(lifetimes)
        return dict(zip(read, offsets, strict=True)), arena_bytes


def packed_bytes(tensor: Tensor) -> int:
    """Bytes that a weight takes once loaded: of a matrix those of its tiles, of all else as stored."""
    if len(tensor.shape) != 2:
        return tensor.num_bytes
    n, k = tensor.shape
    return -(-n // _TILE_ROWS) * _native.tile_bytes(FORMAT_CODES[tensor.dtype], k)


@dataclass(frozen=True, slots=True)
class _Sized:
    """A packed matrix that is not there."""

    n: int
    k: int
    nbytes: int


class SizingRecorder(CpuRecorder):
    """Records as ever, packs nothing: for the sizes of a program that is not to run."""

    def matrix(self, tensor: Tensor) -> CpuMatrix:
        if tensor.name not in self._matrices:
            n, k = tensor.shape
            packed = cast(_native.PackedMatrix, _Sized(n, k, packed_bytes(tensor)))
            self._matrices[tensor.name] = CpuMatrix(packed, self._takes(tensor.dtype))
        return self._matrices[tensor.name]


def _present(array: Floats | None) -> Floats:
    return _ABSENT if array is None else array
