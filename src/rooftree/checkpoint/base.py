"""What every checkpoint looks like once opened, whatever its format: a spec, and tensors as stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.mapped import MappedFile
from rooftree.checkpoint.rows import StoredRows
from rooftree.specs.model import ModelSpec

DType = Literal[
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "F8_E4M3",
    "MXFP4",
    "NVFP4",
]


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """Factors of a matrix that are kept apart from its bytes: one for each block of rows and columns.

    Attributes:
        values: float32 (row blocks, column blocks), in the order of the matrix.
        block: rows and columns that share a factor. Blocks begin at row and column 0; the edge may cut the
            last ones short. (n, k) is a factor for the whole matrix, (1, k) one for each row.
    """

    values: npt.NDArray[np.float32]
    block: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(StoredRows):
    """One tensor in the bits its file stores, normally a view into a memory map.

    Attributes:
        name: canonical name (see ``Checkpoint``); shown in errors.
        shape: row-major, outermost first; a linear weight is (out_features, in_features).
        dtype: storage format. Quantised formats hold blocks of 16 to 256 consecutive elements of the last
            axis (``formats.FORMATS``).
        data: uint8, one-dimensional, exactly the tensor's bytes.
        source: file and stored name, for messages.
        scales: factors that the elements in ``data`` are still to be multiplied with, where the format leaves
            them out (``F8_E4M3``, ``NVFP4``); None: there are none.
        file: the map that ``data`` is a view of; None: it lies elsewhere.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    data: npt.NDArray[np.uint8]
    source: str
    scales: Scales | None = None
    file: MappedFile | None = None

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements as stored, scales not counted."""
        return int(self.data.nbytes)


@dataclass(frozen=True, slots=True)
class TextAssets:
    """All that the text floor needs from a checkpoint, still unparsed.

    Exactly one of ``tokenizer_json`` (a Hugging Face tokenizer.json) and ``gguf_vocab`` (the
    ``tokenizer.ggml.*`` metadata, keys without that prefix) is set. Token ids come from the files, never from
    guesses.
    """

    tokenizer_json: bytes | None = None
    gguf_vocab: Mapping[str, Any] | None = None
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation_defaults: Mapping[str, float | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """An opened model: validated against its spec, nothing read that is not needed yet.

    ``tensors`` uses Hugging Face's names for the Llama line in every format: ``model.embed_tokens.weight``,
    ``model.layers.0.self_attn.{q,k,v,o}_proj.{weight,bias}``,
    ``model.layers.0.self_attn.{q,k}_norm.weight``, ``model.layers.0.mlp.{gate,up,down}_proj.{weight,bias}``,
    ``model.layers.0.{input,post_attention}_layernorm.weight``, ``model.norm.weight``, ``lm_head.weight``
    (absent where tied). Rows of Q and K are in half-split rotary order. ``notices`` are sentences for whoever
    starts the model: what was done in another way than asked.
    """

    name: str
    path: str
    format: Literal["gguf", "safetensors"]
    spec: ModelSpec
    tensors: Mapping[str, Tensor]
    text: TextAssets
    notices: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())
