"""Persistent compilation cache: a folder, or a prefix of an object store, of compiled programs that processes share.

`config.compilation_cache_dir` enables it. The key of an entry is a digest of everything that the compiled program
depends on. An entry starts with a digest of its own bytes, because XLA would load and run damaged entries. Entries that
are damaged or that XLA rejects are compiled again. Entries are written atomically, so that processes may share a store.
The entries are executed: either only the user may write to the store, or `compilation_cache_key` is set, and the
digests are keyed with it.

Programs can be compiled for devices that are not present, and loaded later: their entries have keys that do not depend
on the machine that compiled them.
"""

import hashlib
import hmac
import logging
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.base._jaxlib import (
    CompilerOptions,
    Device,
    RuntimeFailure,
    topology_versions,
    versions,
)
from shardwise.base.config import config
from shardwise.compiler.lower.hlo import without_locations
from shardwise.monitoring import record_event
from shardwise.runtime.binary import Binary
from shardwise.runtime.cache_stores import CacheStore, cache_store

_AUTOTUNING = "xla_gpu_autotune_level"
_MAGIC = b"shardwise executable 1\n"
_log = logging.getLogger("shardwise")


def enabled_store() -> CacheStore | None:
    """Return the store of the settings; None if there is none, or if it cannot be used."""
    if not (config.enable_compilation_cache and config.compilation_cache_dir):
        return None
    return cache_store(config.compilation_cache_dir, bool(config.compilation_cache_key))


def load_or_compile(
    store: CacheStore,
    text: str,
    devices: Sequence[Any],
    options: CompilerOptions,
    compile_module: Callable[[], Binary],
) -> Binary:
    """Return the executable of a module: from the cache, or compiled by `compile_module` and then written to it."""
    key = program_key(text, devices, options)
    keys = [key] if devices[0].platform == "cpu" else [key, topology_key(text, devices, options)]
    for candidate in keys:
        cached = _read(store, candidate, text, devices, options)
        if cached is not None:
            record_event("/jax/compilation_cache/cache_hits")
            return cached
    record_event("/jax/compilation_cache/cache_misses")
    start = time.perf_counter()
    binary = compile_module()
    if time.perf_counter() - start >= config.persistent_cache_min_compile_time_secs:
        write_entry(store, key, binary)
    return binary


def program_key(text: str, devices: Sequence[Any], options: CompilerOptions) -> str:
    """Return the digest of everything that the compiled program depends on, which excludes source locations.

    Processes that run a program together have equal keys, and so have processes that run it on their own devices, if
    these have the same positions in both: an executable contains no process index, and is loaded for other devices.
    """
    return _digest_of(text, devices, options, machine(devices[0]).values())


def topology_key(text: str, devices: Sequence[Any], options: CompilerOptions) -> str:
    """Return the key of a program that was compiled for a topology, on a machine that need not have such devices.

    The devices are those of the topology, or the present ones. Autotuning is not part of the key: it needs the devices.
    """
    options = [(name, value) for name, value in options if name != _AUTOTUNING]
    return _digest_of(text, devices, options, (topology_versions(devices[0]), os.environ.get("XLA_FLAGS", "")))


def _digest_of(text: str, devices: Sequence[Any], options: CompilerOptions, machine: Iterable[str]) -> str:
    parts = [without_locations(text), *machine, _positions(devices), repr(sorted(options))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _positions(devices: Sequence[Any]) -> str:
    """Return the positions of devices in their process if all are in one, else their ids."""
    processes = {device.process_index for device in devices}
    if len(processes) > 1:
        return " ".join(str(device.id) for device in devices)
    peers = (device.id for device in devices[0].client.devices() if device.process_index in processes)
    positions = {id: position for position, id in enumerate(peers)}
    return " ".join(f"local {positions[device.id]}" for device in devices)


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


def _read(store: CacheStore, key: str, text: str, devices: Sequence[Any], options: CompilerOptions) -> Binary | None:
    """Return the executable of an entry, or None if the entry is missing or cannot be used."""
    try:
        contents = store.read(key)
    except (OSError, ValueError) as error:
        _log.warning("the compilation cache has an entry that cannot be read and is compiled again: %s", error)
        return None
    if contents is None:
        return None
    head, blob = contents[: len(_MAGIC) + 32], contents[len(_MAGIC) + 32 :]
    if not hmac.compare_digest(head, _MAGIC + _digest(key, blob)):
        wrong = "an entry that is damaged or has another key" if config.compilation_cache_key else "a damaged entry"
        _log.warning("the compilation cache has %s, which is compiled again: %s", wrong, store.location(key))
        return None
    try:
        binary = Binary.load(blob, text, devices, options)
    except (RuntimeFailure, ValueError, TypeError) as error:
        _log.warning(
            "the compilation cache has an entry that cannot be loaded and is compiled again: %s (%s)",
            store.location(key),
            error,
        )
        return None
    store.record_use(key)
    return binary


def _digest(key: str, blob: bytes) -> bytes:
    """Return the digest of an entry. With a secret, it also covers the key, so that entries cannot be exchanged."""
    secret = config.compilation_cache_key
    return hmac.digest(secret.encode(), key.encode() + blob, "sha256") if secret else hashlib.sha256(blob).digest()


def write_entry(store: CacheStore, key: str, binary: Binary) -> None:
    """Write an executable to the cache. Failures are logged, because the program is already compiled."""
    try:
        blob = binary.serialize()
    except RuntimeFailure as error:  # some platforms cannot serialize
        _log.debug("an executable cannot be serialized: %s", error)
        return
    try:
        if not store.write(key, _MAGIC + _digest(key, blob) + blob):
            return
        if config.compilation_cache_max_size >= 0:
            store.evict(config.compilation_cache_max_size)
    except OSError as error:
        _log.warning("the compilation cache cannot be written: %s", error)
        return
    record_event("/shardwise/compilation_cache/written")
