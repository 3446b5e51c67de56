"""Rows of Q and K from the pairwise rotary order of GGUF's llama files to the half-split order used here.

llama.cpp rotates neighbours (2i, 2i + 1) of a head in this architecture, so its converter stores the halves
of each head interleaved: stored row 2i + s is row i of half s.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.lazy import LazyTensor


def half_split(stored: Tensor, heads: int) -> Tensor:
    """A stored tensor with its rows in half-split order, moved each time its data is asked for.

    Whole rows move, so quantised ones keep their bits. The rows lie on the first axis; those of a vector are
    its elements.
    """

    head = stored.num_rows // heads

    def moved(first: int, last: int) -> npt.NDArray[np.uint8]:
        begin, end = first // head * head, -(-last // head) * head  # of the heads that hold these rows
        pairs = stored.rows(begin, end).reshape(-1, head // 2, 2, stored.num_bytes // stored.num_rows)
        rows = pairs.swapaxes(1, 2).reshape(end - begin, -1)[first - begin : last - begin]
        stored.give_back(begin, end)
        return rows.reshape(-1)

    return LazyTensor(stored.name, stored.shape, stored.dtype, stored.source, moved)
