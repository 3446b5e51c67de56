"""Fetch a model directory from a Hugging Face hub, into the cache that all Hugging Face tools share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rooftree.errors import ModelError

PREFIX = "hf:"

# All that a model directory can hold for us, and none of a repository's other formats and copies.
PATTERNS = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)


class HubModel(NamedTuple):
    """``org/name`` and a branch, tag or commit; None: the main branch."""

    repo: str
    revision: str | None


def parse_hub_name(model: str) -> HubModel:
    """``hf:org/name`` or ``hf:org/name@revision``. Raises ModelError for anything else."""
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", model)
    if match is None:
        raise ModelError(
            f"{model}: a model on the Hugging Face hub is written hf:org/name or hf:org/name@revision"
        )
    return HubModel(match[1], match[2])


def fetch_snapshot(model: HubModel, *, cache_dir: Path | None = None, endpoint: str | None = None) -> Path:
    """The directory of a model's files, downloaded as far as they are not in the cache.

    ``cache_dir`` and ``endpoint`` default to huggingface_hub's own.

    Raises:
        ModelError: no such model or revision, no access, or no network.
    """
    # Importing the library takes longer than opening a local model.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        folder = snapshot_download(
            model.repo,
            revision=model.revision,
            allow_patterns=list(PATTERNS),
            cache_dir=cache_dir,
            endpoint=endpoint,
        )
    except GatedRepoError as error:
        raise _failed(
            model, "its owners grant access one by one; ask them, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise _failed(model, "there is no such model, or it is private and needs `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise _failed(model, "the model has no such revision") from error
    except Exception as error:
        # The library lets its HTTP client's errors through, and the client differs between its versions.
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise _failed(model, reason) from error
    return Path(str(folder))


def _failed(model: HubModel, reason: str) -> ModelError:
    revision = f"@{model.revision}" if model.revision else ""
    return ModelError(f"{PREFIX}{model.repo}{revision}: cannot be downloaded: {reason}")
