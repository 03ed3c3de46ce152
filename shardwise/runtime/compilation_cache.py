"""Persistent compilation cache: a folder of compiled programs that processes share.

`config.compilation_cache_dir` enables it. The key of an entry is a digest of everything that the compiled program
depends on. An entry starts with a digest of its own bytes, because XLA would load and run damaged entries. Entries that
are damaged or that XLA rejects are compiled again. Files are written atomically, so that processes may share a folder.
The contents of the folder are executed: either only the user may have write access to it, or `compilation_cache_key` is
set, and the digests are keyed with it.
"""

import hashlib
import hmac
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from shardwise.base._jaxlib import (
    CompilerOptions,
    Device,
    Executable,
    RuntimeFailure,
    deserialize_executable,
    serialize_executable,
    versions,
)
from shardwise.base.config import config
from shardwise.base.regular_file import read_regular_file
from shardwise.compiler.lower.hlo import without_locations
from shardwise.monitoring import record_event

_MAGIC = b"shardwise executable 1\n"
_SUFFIX = ".executable"
_LARGEST_ENTRY = 1 << 32  # bytes
_log = logging.getLogger("shardwise")


def load_or_compile(
    text: str, devices: Sequence[Any], options: CompilerOptions, compile_module: Callable[[], Executable]
) -> Executable:
    """Return the executable of a module: from the cache, or compiled by `compile_module` and then written to it."""
    folder = _folder(config.compilation_cache_dir, bool(config.compilation_cache_key))
    if folder is None:
        return compile_module()
    path = folder / f"{program_key(text, devices, options)}{_SUFFIX}"
    cached = _read(path, text, devices, options)
    if cached is not None:
        record_event("/jax/compilation_cache/cache_hits")
        return cached
    record_event("/jax/compilation_cache/cache_misses")
    start = time.perf_counter()
    executable = compile_module()
    if time.perf_counter() - start >= config.persistent_cache_min_compile_time_secs:
        _write(path, executable)
    return executable


def program_key(text: str, devices: Sequence[Any], options: CompilerOptions) -> str:
    """Return the digest of everything that the compiled program depends on, which excludes source locations.

    Processes that run a program together have equal keys, and so have processes that run it on their own devices, if
    these have the same positions in both: an executable contains no process index, and is loaded for other devices.
    """
    local = {device.id: position for position, device in enumerate(devices[0].client.local_devices())}
    ids = [device.id for device in devices]
    is_local = local.keys() >= set(ids)
    positions = [f"local {local[id]}" if is_local else str(id) for id in ids]
    parts = [without_locations(text), *machine(devices[0]).values(), " ".join(positions), repr(sorted(options))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def machine(device: Device) -> dict[str, str]:
    """Return the properties of this process that a compiled program depends on, by name."""
    return {"versions": versions(device), "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""), "processor": _processor()}


@cache
def _processor() -> str:
    """Return the features of this machine's CPU. Code that is compiled for another CPU may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = {line.partition(":")[2] for line in lines if line.startswith(("flags", "Features", "model name"))}
    return f"{platform.machine()} {platform.processor()} {sorted(features)}"


@cache
def _folder(name: str, has_key: bool) -> Path | None:
    """Return the folder of the cache, created if missing. If it cannot be used, log the reason and return None.

    With a key, other users may write to it.
    """
    folder = Path(name).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        _log.warning("compilation_cache_dir %s cannot be used: %s", folder, error)
        return None
    # On Windows, permissions are access-control lists, which `stat` does not return.
    if not has_key and hasattr(os, "getuid") and (state.st_uid != os.getuid() or state.st_mode & 0o022):
        _log.warning(
            "compilation_cache_dir %s is not used: other users may write to it, and its contents are executed. "
            "Restrict it to yourself, or set compilation_cache_key: chmod 700 %s",
            folder,
            folder,
        )
        return None
    return folder


def _read(path: Path, text: str, devices: Sequence[Any], options: CompilerOptions) -> Any:
    """Return the executable in a file, or None if the file is missing or cannot be used."""
    try:
        contents = read_regular_file(path, _LARGEST_ENTRY)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("the compilation cache has an entry that cannot be read and is compiled again: %s", error)
        return None
    head, blob = contents[: len(_MAGIC) + 32], contents[len(_MAGIC) + 32 :]
    if not hmac.compare_digest(head, _MAGIC + _digest(path.name, blob)):
        wrong = "an entry that is damaged or has another key" if config.compilation_cache_key else "a damaged entry"
        _log.warning("the compilation cache has %s, which is compiled again: %s", wrong, path)
        return None
    try:
        executable = deserialize_executable(blob, text, devices, options)
    except (RuntimeFailure, ValueError, TypeError) as error:
        _log.warning(
            "the compilation cache has an entry that cannot be loaded and is compiled again: %s (%s)", path, error
        )
        return None
    try:
        os.utime(path)  # the time of last use, for the eviction order
    except OSError:
        _log.debug("entry %s was removed meanwhile", path)
    return executable


def _digest(name: str, blob: bytes) -> bytes:
    """Return the digest of an entry. With a key, it also covers the name, so that entries cannot be exchanged."""
    key = config.compilation_cache_key
    return hmac.digest(key.encode(), name.encode() + blob, "sha256") if key else hashlib.sha256(blob).digest()


def _write(path: Path, executable: Executable) -> None:
    """Write an executable to the cache. Failures are only logged, because the program is already compiled."""
    try:
        blob = serialize_executable(executable)
    except RuntimeFailure as error:  # some platforms cannot serialize
        _log.debug("an executable cannot be serialized: %s", error)
        return
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        temporary.write_bytes(_MAGIC + _digest(path.name, blob) + blob)
        temporary.replace(path)
        _evict(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        _log.warning("the compilation cache cannot be written: %s", error)


def _evict(folder: Path) -> None:
    """Delete the least recently used entries until the cache is within its size limit."""
    limit = config.compilation_cache_max_size
    if limit < 0:
        return
    entries = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            state = path.stat()
        except FileNotFoundError:  # another process deleted it
            continue
        entries.append((state.st_mtime, state.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        path.unlink(missing_ok=True)
        total -= size
