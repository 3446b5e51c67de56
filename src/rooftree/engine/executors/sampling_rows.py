"""Packs what the native sampler needs to know of each sampled request."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from rooftree import _native
from rooftree.scheduler.output import ScheduledRequest

# native/sampler.h, SamplingRow.
_ROW = struct.Struct("<6f2iQ7i4x")
_NOTHING_INT = np.zeros(1, np.int32)
_NOTHING_FLOAT = np.zeros(1, np.float32)

# native/sampler.h, SampleResult.
RESULT_DTYPE = np.dtype(
    [
        ("token", np.int32),
        ("status", np.int32),
        ("logprob", np.float32),
        ("rank", np.int32),
        ("num_top", np.int32),
        ("top_ids", np.int32, _native.MAX_TOP_LOGPROBS),
        ("top_logprobs", np.float32, _native.MAX_TOP_LOGPROBS),
    ]
)


class SamplingRows:
    """Reusable buffers for up to ``capacity`` sampled requests of a step."""

    def __init__(self, capacity: int) -> None:
        if _ROW.size != _native.SAMPLING_ROW_BYTES or RESULT_DTYPE.itemsize != _native.SAMPLE_RESULT_BYTES:
            raise RuntimeError("the native module does not match this package; install it again")
        self._memory = bytearray(capacity * _ROW.size)
        self.rows: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self.bias_ids = self.banned_ids = _NOTHING_INT
        self.bias_values = _NOTHING_FLOAT

    def pack(self, requests: list[ScheduledRequest]) -> None:
        """Fill the buffers for these requests, in order."""
        bias_ids: list[int] = []
        bias_values: list[float] = []
        banned: list[int] = []
        for i, request in enumerate(requests):
            params = request.params
            bias_begin, ban_begin = len(bias_ids), len(banned)
            if params.logit_bias:
                bias_ids.extend(params.logit_bias.keys())
                bias_values.extend(params.logit_bias.values())
            if request.banned_token_ids:
                banned.extend(request.banned_token_ids)
            num_tokens = len(request.token_ids)
            _ROW.pack_into(
                self._memory,
                i * _ROW.size,
                params.temperature,
                params.top_p,
                params.min_p,
                params.presence_penalty,
                params.frequency_penalty,
                params.repetition_penalty,
                params.top_k,
                -1 if params.logprobs is None else params.logprobs,
                request.seed & 0xFFFFFFFFFFFFFFFF,
                num_tokens - request.num_prompt_tokens,
                request.num_prompt_tokens,
                num_tokens,
                bias_begin,
                len(bias_ids),
                ban_begin,
                len(banned),
            )
        self.bias_ids = np.array(bias_ids, np.int32) if bias_ids else _NOTHING_INT
        self.bias_values = np.array(bias_values, np.float32) if bias_ids else _NOTHING_FLOAT
        self.banned_ids = np.array(banned, np.int32) if banned else _NOTHING_INT
