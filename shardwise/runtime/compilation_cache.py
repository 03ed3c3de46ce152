"""The compilation cache on disk: what one process has compiled, others load.

It is on once `config.compilation_cache_dir` names a folder. An entry is found by everything that the compiled program
depends on; it carries a digest of its own, because XLA would load damaged bytes and run them. Entries that are damaged,
or that this XLA refuses, are made again. Files appear whole or not at all, so many processes may share a folder; and it
belongs to the user alone, because what is in it is run.
"""

import hashlib
import logging
import os
import platform
import re
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from shardwise._jaxlib import (
    CompilerOptions,
    RuntimeFailure,
    compile_text,
    deserialize_executable,
    serialize_executable,
    versions,
)
from shardwise.config import config

_MAGIC = b"shardwise executable 1\n"
_SUFFIX = ".executable"
_log = logging.getLogger("shardwise")


def compiled(text: str, devices: Sequence[Any], asked: CompilerOptions = ()) -> Any:
    """The executable of a module: from the cache, or compiled now, with the options of XLA's that are asked for."""
    folder = _folder(config.compilation_cache_dir)
    if folder is None:
        return compile_text(text, devices, (), asked)
    path = folder / f"{_key(text, devices, asked)}{_SUFFIX}"
    found = _read(path, text, devices, asked)
    if found is not None:
        return found
    start = time.perf_counter()
    made = compile_text(text, devices, (), asked)
    if time.perf_counter() - start >= config.persistent_cache_min_compile_time_secs:
        _write(path, made)
    return made


def _key(text: str, devices: Sequence[Any], asked: CompilerOptions) -> str:
    """A digest of all that the compiled program depends on; the user's source lines are not among it."""
    parts = [
        re.sub(r" loc\((?:[^()\"]|\"(?:[^\"\\]|\\.)*\"|\([^()]*\))*\)", "", text),
        versions(devices[0]),
        " ".join(str(device.id) for device in devices),
        str(devices[0].client.process_index()),
        os.environ.get("XLA_FLAGS", ""),
        repr(sorted(asked)),
        _processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _processor() -> str:
    """What this machine's processor can do: code for another one may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features", "model name"))}
    return f"{platform.machine()} {platform.processor()} {sorted(features)}"


@cache
def _folder(name: str) -> Path | None:
    """The folder of the cache, made where it is missing; None where it cannot be used, with a word about why."""
    folder = Path(name).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        _log.warning("compilation_cache_dir %s cannot be used: %s", folder, error)
        return None
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        _log.warning(
            "compilation_cache_dir %s is not used: others may write to it, and what is in it is run. "
            "Make it yours alone: chmod 700 %s",
            folder,
            folder,
        )
        return None
    return folder


def _read(path: Path, text: str, devices: Sequence[Any], asked: CompilerOptions) -> Any:
    """The executable in a file; None where there is none, or none that can be used."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    head, blob = whole[: len(_MAGIC) + 32], whole[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(blob).digest():
        _log.warning("the compilation cache has a damaged entry, which is made again: %s", path)
        return None
    try:
        found = deserialize_executable(blob, text, devices, asked)
    except (RuntimeFailure, ValueError, TypeError) as error:
        _log.warning(
            "the compilation cache has an entry that cannot be loaded, and is made again: %s (%s)", path, error
        )
        return None
    try:
        os.utime(path)  # used just now: the last to go when the cache is full
    except OSError:
        _log.debug("entry %s is gone meanwhile", path)
    return found


def _write(path: Path, executable: Any) -> None:
    """Keep an executable. A disk that is full is no reason to fail: the program is compiled."""
    try:
        blob = serialize_executable(executable)
    except RuntimeFailure as error:  # not every platform can
        _log.debug("an executable cannot be saved: %s", error)
        return
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        beside.write_bytes(_MAGIC + hashlib.sha256(blob).digest() + blob)
        beside.replace(path)
        _make_room(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        _log.warning("the compilation cache cannot be written: %s", error)


def _make_room(folder: Path) -> None:
    """While the cache is too large, what was not used for longest goes."""
    limit = config.compilation_cache_max_size
    if limit < 0:
        return
    entries = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            state = path.stat()
        except FileNotFoundError:  # another process has made room
            continue
        entries.append((state.st_mtime, state.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size
