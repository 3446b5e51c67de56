"""Native step programs of a few ops: sampling of chosen logits, and ops on chosen rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rooftree import _native
from rooftree.checkpoint.base import DType, Scales, Tensor
from rooftree.checkpoint.formats import FORMATS, is_quantized, quantize
from rooftree.engine.executors.sampling_rows import RESULT_DTYPE, SamplingRows
from rooftree.kernels.cpu import FORMAT_CODES, CpuRecorder, CpuValue
from rooftree.kernels.ops import Floats
from rooftree.kernels.reference_sampler import Sample
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest

GREEDY = SamplingParams(temperature=0.0)
ISAS = _native.supported_isas()


def rounds_to_bf16(isa: str) -> bool:
    """Whether BF16 weights meet inputs rounded to bf16 there; elsewhere they meet floats."""
    return isa == "avx512_bf16"


def round_to_bf16(x: Floats) -> Floats:
    """To the nearest bf16, ties to even, as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


DTYPES: tuple[DType, ...] = tuple(FORMAT_CODES)
FLOATS = tuple(dtype for dtype in DTYPES if not is_quantized(dtype))
QUANTISED = tuple(dtype for dtype in DTYPES if is_quantized(dtype))
WITH_MINIMA = tuple(dtype for dtype in QUANTISED if dtype in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"))


def width(dtype: DType, blocks: int, odd: int = 32) -> int:
    """A row length of whole blocks, at least 32 inputs each; of ``odd`` where elements stand alone."""
    return blocks * (max(FORMATS[dtype].block, 32) if is_quantized(dtype) else odd)


def set_scales(dtype: DType, blocks: np.ndarray, scales: np.ndarray) -> None:
    """Write scales (n or 1, 2) into stored blocks (n, block bytes): d, and what scales the minimum.

    FP4 formats have no minimum, and of d what their scales can hold: MXFP4 the power of two below it.
    """
    scales = np.broadcast_to(scales, (len(blocks), 2))
    if dtype == "MXFP4":
        size, exponent = np.frexp(np.abs(scales[:, 0].astype(np.float32)))
        blocks[:, 0] = np.where(size > 0, exponent + 126, 0)
    elif dtype == "NVFP4":
        blocks[:, 0] = quantize("F8_E4M3", scales[:, 0])
    else:
        places = [208] if dtype == "Q6_K" else [0, 2] if dtype in WITH_MINIMA else [0]
        for column, place in enumerate(places):
            halves = np.ascontiguousarray(scales[:, column : column + 1])
            blocks[:, place : place + 2] = halves.view(np.uint8)


def pack(
    dtype: DType, stored: np.ndarray, n: int, k: int, pool: _native.ThreadPool, *scales: Any
) -> _native.PackedMatrix:
    """A whole matrix at once; ``scales`` as for ``pack_rows``."""
    packed = _native.PackedMatrix(FORMAT_CODES[dtype], n, k, _native.WeightMemory())
    packed.pack_rows(0, FORMAT_CODES[dtype], stored, pool, *scales)
    return packed


def tensor(name: str, values: np.ndarray, dtype: DType = "F32") -> Tensor:
    """A tensor in memory, rounded to a storage format."""
    return Tensor(name, values.shape, dtype, quantize(dtype, values), "test")


# Rows, columns and the block that shares a factor: the matrix, each row, blocks that the edges cut, one that
# is larger than the matrix, one of few rows. FP8 takes multiples of 128 columns, FP4 of 32.
BLOCKS_OF_SCALES = [
    (37, 320, (37, 320)),
    (37, 320, (1, 320)),
    (300, 320, (128, 128)),
    (20, 96, (128, 128)),
    (40, 576, (7, 256)),
]
SCALED: list[tuple[DType, int, int, tuple[int, int]]] = [
    *((dtype, *shape) for dtype in ("F8_E4M3", "MXFP4", "NVFP4") for shape in BLOCKS_OF_SCALES),
    ("F8_E4M3", 19, 301, (8, 128)),
    ("MXFP4", 19, 160, (3, 32)),
    ("NVFP4", 19, 160, (3, 32)),
]


def scaled(dtype: DType, n: int, k: int, block: tuple[int, int], seed: int = 0) -> Tensor:
    """A weight with factors of many sizes and both signs beside its elements."""
    rng = np.random.default_rng(seed)
    shape = (-(-n // block[0]), -(-k // block[1]))
    factors = rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)
    data = quantize(dtype, rng.standard_normal((n, k)) * 100)
    return Tensor("w", (n, k), dtype, data, "test", Scales(factors.astype(np.float32), block))


def asked(
    params: SamplingParams,
    output: Sequence[int],
    *,
    prompt: Sequence[int] = (),
    seed: int = 0,
    banned: tuple[int, ...] = (),
    request_id: str = "r",
) -> ScheduledRequest:
    """A request whose last token alone is computed in the step; block 0 is its whole table."""
    tokens = [*prompt, *output]
    return ScheduledRequest(
        request_id, tokens, len(prompt), len(tokens) - 1, 1, [0], True, params, seed, banned
    )


class RowProgram:
    """A program over a table of float32 rows: token i of a step enters as row ``token_ids[i]`` of the table.

    ``body`` records ops from the rows to what is sampled; no op may need attention.
    """

    def __init__(
        self,
        rows: Floats,
        body: Callable[[CpuRecorder, CpuValue], CpuValue] = lambda ops, x: x,
        *,
        isa: str = ISAS[0],
        threads: int = 1,
        max_tokens: int = 128,
    ) -> None:
        self._max_tokens = max_tokens
        recorder = CpuRecorder(_native.ThreadPool(threads), isa, heads=1, kv_heads=1, head_dim=8)
        x = body(recorder, recorder.embed(recorder.matrix(tensor("rows", rows))))
        logits = recorder.select_sampled(x)
        recorder.sample(logits)
        self.columns = logits.columns
        angles = np.zeros((1, 4), np.float32)
        self.program, _ = recorder.build(max_tokens, max_tokens, angles, angles)
        self.program.set_kv_cache(_native.KvCache(1, 1, 8, 16, 0, 1))

    def compute(self, token_ids: Sequence[int]) -> Floats:
        """What the body makes of these rows, (tokens, columns), in one step."""
        self.sample([asked(GREEDY, [token]) for token in token_ids])
        return self.logits(len(token_ids))

    def logits(self, num_rows: int) -> Floats:
        """The sampled rows of the last step, as the sampler's edits left them."""
        out = np.empty(num_rows * self.columns, np.float32)
        self.program.copy_logits(out)
        return out.reshape(num_rows, self.columns)

    def sample(self, requests: Sequence[ScheduledRequest]) -> list[Sample | None]:
        """One step in which each request computes its last token and samples; None: the native error."""
        longest = max(len(request.token_ids) for request in requests)
        tokens = np.zeros((len(requests), longest), np.int32)
        steps = np.zeros((len(requests), 5), np.int32)
        for i, request in enumerate(requests):
            tokens[i, : len(request.token_ids)] = request.token_ids
            steps[i] = (i, request.start, 1, 1, 0)
        packed = SamplingRows(len(requests))
        packed.pack(list(requests))
        results = np.zeros(len(requests), RESULT_DTYPE)
        self.program.run(
            steps,
            tokens,
            np.zeros((len(requests), 1), np.int32),
            packed.rows,
            packed.bias_ids,
            packed.bias_values,
            packed.banned_ids,
            results.view(np.uint8).reshape(-1),
        )
        return [_sample(request, result) for request, result in zip(requests, results, strict=True)]


def _sample(request: ScheduledRequest, result: np.void) -> Sample | None:
    token, n = int(result["token"]), int(result["num_top"])
    if token < 0:
        return None
    if request.params.logprobs is None:
        return Sample(token)
    top_ids, top_logprobs = result["top_ids"][:n].tolist(), result["top_logprobs"][:n].tolist()
    return Sample(token, float(result["logprob"]), int(result["rank"]), tuple(top_ids), tuple(top_logprobs))
