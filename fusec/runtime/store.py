"""The store of compiled kernels: one directory per key, written to the side and renamed into place.

An entry is whole or absent: its `entry.json` holds the hash of every file beside it, and an entry that does not match is a miss
with one warning. Nothing in the store is ever changed in place, and nothing is deleted that another process may be reading.
"""
from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..log import log, warn_once

LOCK_SECONDS = 120.0
"""How long to wait for another process that compiles the same kernel before compiling it here as well."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory of the store: `meta` is what was published beside the files."""

    path: Path
    meta: Mapping[str, Any]

    def file(self, name: str) -> Path:
        return self.path / name


@dataclass(frozen=True, slots=True)
class Store:
    """Entries below `root`."""

    root: Path

    def find(self, key: str) -> Entry | None:
        """The entry of a key if it is there and whole."""
        path = self._place(key)
        if not path.is_dir():
            return None
        try:
            meta = json.loads((path / "entry.json").read_text())
            for name, expected in meta["files"].items():
                if hashlib.sha256((path / name).read_bytes()).hexdigest() != expected:
                    raise ValueError(f"{name} does not have the hash it was published with")
            return Entry(path, meta["meta"])
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            warn_once(f"{path}: the entry is damaged and is compiled again ({error})")
            return None

    def publish(self, key: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> Entry:
        """Write an entry and return it; where the store cannot be written, an entry of a private temporary folder."""
        try:
            return self._publish(key, files, meta)
        except OSError as error:
            fallback = private_store()
            if fallback.root == self.root:
                raise
            warn_once(f"{self.root} cannot be written ({error.strerror or error}): kernels of this process go to {fallback.root}")
            return fallback._publish(key, files, meta)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Held by the process that compiles a key. Released by the system when its holder dies; given up on after LOCK_SECONDS."""
        from filelock import FileLock, Timeout
        folder = self.root / "locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{key}.lock", timeout=LOCK_SECONDS)
            lock.acquire()
        except Timeout:
            log(f"{folder / key}.lock: held for {LOCK_SECONDS:.0f} s by process {_holder(folder, key)}; compiling without it")
            yield
            return
        except OSError:
            yield
            return
        try:
            _note_holder(folder, key)
            yield
        finally:
            lock.release()

    def _place(self, key: str) -> Path:
        return self.root / key[:2] / key

    def _publish(self, key: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> Entry:
        place = self._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        side = place.parent / f".{key}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        side.mkdir()
        try:
            hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
            for name, data in files.items():
                (side / name).write_bytes(data)
            (side / "entry.json").write_text(json.dumps({"files": hashes, "meta": meta}, indent=1, sort_keys=True))
            self._rename(side, place, key)
        except BaseException:
            _discard(side)
            raise
        return Entry(place, json.loads(json.dumps(meta)))

    def _rename(self, side: Path, place: Path, key: str) -> None:
        try:
            side.rename(place)
        except OSError:
            if self.find(key) is not None:  # Another process was first, with the same content.
                _discard(side)
                return
            damaged = place.parent / f".damaged.{key}.{uuid.uuid4().hex[:8]}"
            place.rename(damaged)  # Whoever reads it goes on reading.
            side.rename(place)


def _discard(folder: Path) -> None:
    for file in folder.iterdir() if folder.is_dir() else ():
        file.unlink(missing_ok=True)
    if folder.is_dir():
        folder.rmdir()


def _note_holder(folder: Path, key: str) -> None:
    try:
        (folder / f"{key}.pid").write_text(str(os.getpid()))
    except OSError:
        pass


def _holder(folder: Path, key: str) -> str:
    try:
        return (folder / f"{key}.pid").read_text()
    except OSError:
        return "unknown"


def store() -> Store:
    """The user's store: FUSEC_CACHE_DIR, else the platform's cache folder, else a private temporary folder."""
    return _store(os.environ.get("FUSEC_CACHE_DIR", ""))


@cache
def _store(override: str) -> Store:
    if override:
        return Store(Path(override).expanduser().absolute())
    root = _user_cache()
    return Store(root) if root is not None else private_store()


def _user_cache() -> Path | None:
    """The platform's cache folder for fusec, None where it cannot be made and is not there."""
    try:
        from platformdirs import user_cache_path
        root = user_cache_path("fusec", appauthor=False)
        if not root.is_absolute():
            return None
        root.mkdir(parents=True, exist_ok=True)
        return root
    except (OSError, KeyError, RuntimeError, ImportError) as error:
        warn_once(f"no cache folder for this user ({error}): kernels of this process go to a temporary folder; "
                  "FUSEC_CACHE_DIR names a lasting one")
        return None


@cache
def private_store() -> Store:
    """A store of this process alone, in a new folder that only its user may open."""
    root = Path(tempfile.mkdtemp(prefix="fusec-"))
    root.chmod(stat.S_IRWXU)
    return Store(root)
