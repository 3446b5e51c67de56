"""Products of packed weights with rows of activations, alone: a chain of them from memory, timed."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import numpy.typing as npt

from rooftree import _native
from rooftree.checkpoint.base import DType, Tensor
from rooftree.kernels.cpu import CpuRecorder
from rooftree.probe.random_model import random_tensor


class ProductChain:
    """``count`` matrices (n, k) of one format, each times the same rows, all added to one output.

    As in a step, activations are rounded once. ``max_rows``: most rows that will be timed.

    Attributes:
        weights: how many there are in all; ``weight_bytes``: of them as packed.
    """

    def __init__(
        self, dtype: DType, n: int, k: int, *, count: int, max_rows: int, threads: int, isa: str
    ) -> None:
        self.weights = count * n * k
        recorder = CpuRecorder(_native.ThreadPool(threads), isa, heads=1, kv_heads=1, head_dim=8)
        stored = random_tensor("weight", (n, k), dtype)
        x = recorder.embed(recorder.matrix(random_tensor("x", (max_rows, k), "F32")))
        total = recorder.embed(recorder.matrix(random_tensor("y", (max_rows, n), "F32")))
        before = recorder.weight_bytes
        for i in range(count):
            weight = recorder.matrix(Tensor(f"{i}", stored.shape, dtype, stored.data, stored.source))
            total = recorder.linear_add(total, x, weight, None)
        self.weight_bytes = recorder.weight_bytes - before
        recorder.sample(recorder.select_sampled(total))
        angles = np.zeros((max_rows, 4), np.float32)
        self._program, _ = recorder.build(max_rows, 1, angles, angles)
        self._program.set_kv_cache(_native.KvCache(1, 1, 8, 16, 0, 1))
        self._tokens = np.arange(max_rows, dtype=np.int32).reshape(1, max_rows)
        self._blocks = np.zeros((1, -(-max_rows // 16)), np.int32)

    def seconds(self, rows: int) -> float:
        """One pass through all matrices."""
        none: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        no_bytes, no_floats = np.zeros(0, np.uint8), np.zeros(0, np.float32)
        request = np.array([[0, 0, rows, 0, 0]], np.int32)
        begin = perf_counter()
        self._program.run(request, self._tokens, self._blocks, no_bytes, none, no_floats, none, no_bytes)
        return perf_counter() - begin
