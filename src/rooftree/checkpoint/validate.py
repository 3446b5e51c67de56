"""Whether the tensors of a file are those of its spec: nothing missing, nothing odd, nothing left over."""

from __future__ import annotations

from collections.abc import Mapping

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import is_quantized
from rooftree.checkpoint.layout import HEAD, Shape, tensor_shapes
from rooftree.errors import ModelError
from rooftree.specs.model import ModelSpec

# Inputs that share a scale where a weight is quantised (``round_to_int8`` of the kernels' reference).
_INPUT_BLOCK = 32

# Tables that old exports carry although they follow from the configuration.
_DERIVED = ("rotary_emb.inv_freq", "attn_rot_embd.weight")


def is_derived(name: str) -> bool:
    """Whether a stored tensor only repeats what the configuration says, so that it can be left out."""
    return name.endswith(_DERIVED)


def validate_tensors(spec: ModelSpec, tensors: Mapping[str, Tensor], path: str) -> dict[str, Tensor]:
    """Exactly the tensors that the spec requires, in its order.

    A tied model is what its configuration says it is: a spare lm_head beside it is ignored. An untied model
    must have one. Any other tensor that the spec does not know is refused, because a model that has it
    computes something else.

    Raises:
        ModelError: naming the file and the tensor, and both shapes where they differ.
    """
    required = tensor_shapes(spec)
    missing = [name for name in required if name not in tensors]
    if missing:
        raise ModelError(_missing(missing, required, path))
    for name, tensor in tensors.items():
        if name not in required and not is_derived(name) and not (name == HEAD and spec.tie_word_embeddings):
            raise ModelError(
                f"{tensor.source}: a {spec.family} model of this configuration has no such tensor"
            )
    for name, shape in required.items():
        _check(tensors[name], shape)
    return {name: tensors[name] for name in required}


def _missing(missing: list[str], required: Mapping[str, Shape], path: str) -> str:
    name = missing[0]
    message = f"{path}: tensor {name!r} of shape {list(required[name])} is missing"
    if name == HEAD:
        message += ", and the configuration does not tie it to the embedding (tie_word_embeddings)"
    if len(missing) > 1:
        message += f", and {len(missing) - 1} more"
    return message


def _check(tensor: Tensor, shape: Shape) -> None:
    if tensor.shape != shape:
        raise ModelError(
            f"{tensor.source}: has the shape {list(tensor.shape)}; the configuration needs {list(shape)}"
        )
    if not is_quantized(tensor.dtype):
        return
    if len(shape) == 1:
        raise ModelError(f"{tensor.source}: is {tensor.dtype}; norms and biases must be F32, F16 or BF16")
    if shape[-1] % _INPUT_BLOCK:
        raise ModelError(
            f"{tensor.source}: is {tensor.dtype} with rows of {shape[-1]} columns; quantised weights are "
            f"multiplied with inputs that are rounded in blocks of {_INPUT_BLOCK}, which rows must fill"
        )
