from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SAMPLING_ROW_BYTES: int
SAMPLE_RESULT_BYTES: int
MAX_TOP_LOGPROBS: int
PARTITION: int

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Ints = npt.NDArray[np.int32]

def multiplies_bf16(isa: str) -> bool:
    """Whether the kernels of that instruction set round what meets BF16 weights, K and V to bf16."""

def supported_isas() -> list[str]:
    """Kernels that this processor can run, best first."""

def philox_uniform(seed: int, counter: int) -> float: ...
def tile_bytes(format: int, k: int) -> int: ...
def quantised_row_bytes(k: int) -> int: ...
def rounded_row_bytes(k: int) -> int: ...
def read_rate(isa: str, processors: list[int], num_bytes: int, tries: int) -> float:
    """Bytes/s read together by a thread on each processor from memory of their own, best of the tries.

    Raises ValueError for what cannot be, as all of these do.
    """

def fp32_rate(isa: str, processors: list[int], rounds: int, tries: int) -> float:
    """FLOP/s of multiply-adds in registers."""

def int8_rates(isa: str, processors: list[int], rounds: int, tries: int) -> list[tuple[str, float]]:
    """Operations/s of int8 products in registers, by way of computing them."""

class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class WeightMemory:
    """Room for packed matrices, which keep what they use of it alive."""

    def __init__(self) -> None: ...
    def read_rate(self, isa: str, processors: list[int], num_bytes: int, tries: int) -> float:
        """As the function of this name, from the packed matrices: once where there are more bytes than asked
        for, else over and over."""

class PackedMatrix:
    def __init__(self, format: int, n: int, k: int, memory: WeightMemory) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tiles(self) -> _Bytes:
        """The packed bytes where they lie (native/pack.h), read-only."""
    def pack_rows(
        self,
        first: int,
        format: int,
        stored: _Bytes,
        pool: ThreadPool,
        scales: _Floats | None = None,
        block_rows: int = 1,
        block_columns: int = 1,
        isa: str | None = None,
    ) -> None:
        """Fill rows from ``first`` on, each once and in multiples of 16 except at the end.

        ``format``: of the bytes. Floats and FP8 in another than the matrix's (BF16 or blocks of 32) are
        rounded to it, as ``checkpoint.formats.quantize`` does.
        ``scales``: (row blocks, column blocks) of the whole matrix.
        ``isa``: to round with; None: the best. It makes no difference but in time.
        """
    def unpack_row(self, row: int, out: _Floats) -> None: ...

class KvCache:
    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, block_size: int, format: int, num_blocks: int
    ) -> None: ...
    def fill(self) -> None:
        """Write small numbers to all of it, as if it had been in use."""

    @staticmethod
    def bytes_per_block(layers: int, kv_heads: int, head_dim: int, block_size: int, format: int) -> int: ...

class Program:
    def __init__(self, pool: ThreadPool, isa: str, max_tokens: int, max_samples: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def current_op(self) -> int:
        """Number of the op that ``run`` is at; for any thread."""
    @property
    def num_ops(self) -> int: ...
    def add_value(self, offset: int, row_bytes: int, per_sample: bool) -> int: ...
    def add_embed(self, table: PackedMatrix, out: int) -> None: ...
    def add_rms_norm(
        self, x: int, weight: _Floats, eps: float, out_float: int, out_quantised: int, out_rounded: int
    ) -> None: ...
    def add_narrow(self, x: int, k: int, out_quantised: int, out_rounded: int) -> None: ...
    def add_linear(
        self,
        x: int,
        matrices: Sequence[PackedMatrix],
        biases: Sequence[_Floats],
        out: int,
        column: int,
        accumulate: bool,
    ) -> None: ...
    def add_gated(
        self,
        gate_x: int,
        up_x: int,
        gate: PackedMatrix,
        up: PackedMatrix,
        gate_bias: _Floats,
        up_bias: _Floats,
        out_float: int,
        out_quantised: int,
        out_rounded: int,
    ) -> None: ...
    def set_heads(self, heads: int, kv_heads: int, head_dim: int, cos: _Floats, sin: _Floats) -> None: ...
    def add_rope_and_cache(
        self, qkv: int, layer: int, q_norm: _Floats, k_norm: _Floats, eps: float
    ) -> None: ...
    def add_attention(self, qkv: int, layer: int, window: int, out: int) -> None: ...
    def add_select(self, x: int, out: int) -> None: ...
    def add_sample(self, logits: int, vocab: int) -> None: ...
    def set_kv_cache(self, cache: KvCache) -> None: ...
    def finish(self, arena_bytes: int) -> None: ...
    def run(
        self,
        requests: _Ints,
        tokens: _Ints,
        blocks: _Ints,
        sampling: _Bytes,
        bias_ids: _Ints,
        bias_values: _Floats,
        banned_ids: _Ints,
        results: _Bytes,
    ) -> None: ...
    def copy_logits(self, out: _Floats) -> None: ...
