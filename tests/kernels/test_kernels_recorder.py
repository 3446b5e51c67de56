"""What the recorder makes of ops: int8 forms where they are read, shared memory, and refusals of misfits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native_rig import ISAS, RowProgram, pack, rounds_to_bf16, tensor

from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.kernels.cpu import CpuMatrix, CpuRecorder, CpuValue

ROWS = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
NUM_FRAME_OPS = 3  # embed, select, sample


def num_ops(body: Callable[[CpuRecorder, CpuValue], CpuValue], isa: str = "portable") -> int:
    return RowProgram(ROWS, body, isa=isa).program.num_ops - NUM_FRAME_OPS


def weight(ops: CpuRecorder, name: str, dtype: DType, n: int = 64) -> CpuMatrix:
    return ops.matrix(tensor(name, np.ones((n, 64), np.float32), dtype))


def test_an_input_is_quantised_once_for_all_its_readers():
    def body(ops: CpuRecorder, x: CpuValue) -> CpuValue:
        first = ops.linear(x, [weight(ops, "a", "Q4_0")], [None])
        second = ops.linear(x, [weight(ops, "b", "Q8_0")], [None])
        return ops.linear_add(first, second, weight(ops, "c", "F32"), None)

    assert num_ops(body) == 4


def test_neighbours_of_one_kind_are_one_op():
    def body(kinds: list[DType]) -> Callable[[CpuRecorder, CpuValue], CpuValue]:
        return lambda ops, x: ops.linear(
            x, [weight(ops, f"{i}", kind) for i, kind in enumerate(kinds)], [None] * len(kinds)
        )

    assert num_ops(body(["F32", "F16", "BF16"])) == 1
    assert num_ops(body(["Q4_0", "Q4_1", "Q8_0"])) == 1 + 1
    assert num_ops(body(["Q4_0", "F32", "Q8_0"])) == 1 + 3


@pytest.mark.parametrize("isa", ISAS)
def test_an_input_is_rounded_once_for_all_bf16_readers(isa: str):
    def body(ops: CpuRecorder, x: CpuValue) -> CpuValue:
        first = ops.linear(x, [weight(ops, "a", "BF16")], [None])
        return ops.linear_add(first, x, weight(ops, "b", "BF16"), None)

    assert num_ops(body, isa) == 2 + rounds_to_bf16(isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["Q4_0", "BF16", "F16"])
def test_producers_write_what_their_reader_takes(isa: str, dtype: DType):
    def body(ops: CpuRecorder, x: CpuValue) -> CpuValue:
        y = ops.rms_norm(x, np.ones(64, np.float32), 1e-5)
        z = ops.gated_mlp(y, weight(ops, "gate", dtype), weight(ops, "up", dtype), None, None)
        return ops.linear(z, [weight(ops, "down", dtype)], [None])

    assert num_ops(body, isa) == 3


def test_a_tensor_is_packed_once():
    recorder = CpuRecorder(_native.ThreadPool(1), "portable", heads=1, kv_heads=1, head_dim=8)
    first, second = (weight(recorder, "same", "F32") for _ in range(2))
    assert first is second
    assert recorder.weight_bytes == 4 * 64 * 64


def arena_bytes(depth: int, max_tokens: int) -> int:
    recorder = CpuRecorder(_native.ThreadPool(1), "portable", heads=1, kv_heads=1, head_dim=8)
    x = recorder.embed(recorder.matrix(tensor("rows", ROWS)))
    for layer in range(depth):
        x = recorder.rms_norm(x, np.ones(64, np.float32), 1e-5)
        x = recorder.linear(x, [weight(recorder, f"{layer}", "Q8_0")], [None])
    recorder.sample(recorder.select_sampled(x))
    angles = np.zeros((1, 4), np.float32)
    return recorder.build(max_tokens, 2, angles, angles)[1]


def test_memory_does_not_grow_with_depth_but_with_the_step():
    assert arena_bytes(20, 64) == arena_bytes(2, 64)
    assert arena_bytes(2, 64) <= 64 * 2 * 4 * 64 + 2 * 4 * 64
    assert arena_bytes(2, 128) > 1.9 * arena_bytes(2, 64)


def test_the_native_program_refuses_misfits():
    pool = _native.ThreadPool(1)
    packed = pack("F32", np.zeros(4 * 3 * 8, np.uint8), 3, 8, pool)
    none = np.zeros(0, np.float32)
    program = _native.Program(pool, "portable", 4, 2)
    wide, narrow = program.add_value(0, 32, False), program.add_value(128, 12, False)
    other = program.add_value(0, 32, False)
    for call, message in [
        (lambda: program.add_embed(packed, narrow), "wrong width"),
        (lambda: program.add_embed(packed, 7), "no such value"),
        (lambda: program.add_linear(narrow, [packed], [none], narrow, 0, False), "wrong width"),
        (lambda: program.add_linear(wide, [packed], [none], narrow, 1, False), "do not fit"),
        (lambda: program.add_linear(wide, [packed], [np.zeros(2, np.float32)], narrow, 0, False), "bias"),
        (lambda: program.add_rms_norm(wide, np.zeros(7, np.float32), 0.0, wide, -1, -1), "wrong width"),
        (lambda: program.add_gated(wide, other, packed, packed, none, none, narrow, -1, -1), "one input"),
        (lambda: program.set_heads(3, 2, 8, none, none), "multiple of KV heads"),
        (lambda: program.finish(128), "does not fit the arena"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="sse9"):
        _native.Program(pool, "sse9", 4, 2)
    program.finish(256)
    with pytest.raises(ValueError, match="finished"):
        program.add_embed(packed, wide)
