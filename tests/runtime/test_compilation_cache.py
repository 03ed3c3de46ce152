"""The persistent compilation cache: sharing between processes, damaged entries, keys, eviction, permissions."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base.config import config
from shardwise.experimental import serialize_executable
from shardwise.runtime import compilation_cache, executable
from shardwise.runtime.cache_stores import Folder
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.arange(8, dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    where = tmp_path / "cache"
    config.update("compilation_cache_dir", str(where))
    yield where
    config.update("compilation_cache_dir", "")
    config.update("compilation_cache_key", "")
    config.update("compilation_cache_max_size", 2**30)
    config.update("persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture
def compilations(monkeypatch):
    """The modules that XLA compiled."""
    seen = []
    compile_text = executable.compile_text
    monkeypatch.setattr(executable, "compile_text", lambda text, *rest: seen.append(text) or compile_text(text, *rest))
    return seen


def function():
    """A new function, which has no entry in the in-memory caches."""
    return sw.jit(lambda x: jnp.tanh(x) * 3 + 1)


def entries(folder):
    return sorted(folder.glob("*.executable"))


def test_a_program_is_compiled_once(folder, compilations):
    first = function()(X)
    assert len(entries(folder)) == len(compilations) > 0
    before = len(compilations)
    np.testing.assert_array_equal(function()(X), first)
    assert len(compilations) == before


def test_another_process_loads_the_entry(folder):
    script = textwrap.dedent("""
        import sys
        import numpy as np
        import shardwise as sw, shardwise.numpy as jnp
        from shardwise.runtime import executable
        from shardwise.sharding import NamedSharding, PartitionSpec as P
        seen = []
        compile_text = executable.compile_text
        executable.compile_text = lambda text, *rest: seen.append(text) or compile_text(text, *rest)
        sw.config.update("jax_compilation_cache_dir", sys.argv[1])
        mesh = sw.make_mesh((4, 2), ("data", "model"))
        x = sw.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, P("data", "model")))
        y = sw.jit(lambda x: jnp.linalg.inv(x @ x.T + 9 * jnp.eye(8)) @ x)(x)
        print(len(seen), float(abs(y).sum()))
    """)
    runs = [
        subprocess.run(
            [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=120, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert int(runs[0][0]) > 0
    assert int(runs[1][0]) == 0
    assert runs[0][1] == runs[1][1]


def test_every_damaged_entry_is_detected_and_compiled_again(folder, compilations, caplog):
    wanted = function()(X)
    (path,) = [
        path for path in entries(folder) if path.stat().st_size == max(p.stat().st_size for p in entries(folder))
    ]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[: len(whole) // 2], b"", b"something else", whole + b"\0"]
    for place in rng.integers(0, len(whole), 12):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    for bytes_there in damaged:
        path.write_bytes(bytes_there)
        compilations.clear()
        np.testing.assert_array_equal(function()(X), wanted)
        assert len(compilations) == 1
        head, blob = (path.read_bytes()[part] for part in (slice(0, 55), slice(55, None)))
        assert head == compilation_cache._MAGIC + compilation_cache.hashlib.sha256(blob).digest()
        assert "damaged entry" in caplog.text
        caplog.clear()


def test_an_entry_that_xla_refuses_is_compiled_again(folder, compilations, caplog):
    wanted = function()(X)
    for path in entries(folder):
        path.write_bytes(
            compilation_cache._MAGIC + compilation_cache.hashlib.sha256(b"nonsense").digest() + b"nonsense"
        )
    compilations.clear()
    np.testing.assert_array_equal(function()(X), wanted)
    assert len(compilations) == 1
    assert "cannot be loaded" in caplog.text


def test_different_programs_have_different_keys(folder, compilations):
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    calls = [
        (function(), X),
        (sw.jit(lambda x: jnp.tanh(x) * 3 + 2), X),
        (function(), X[:4]),
        (function(), X.astype(np.int32)),
        (function(), sw.device_put(X, NamedSharding(mesh, P("data")))),
        (function(), sw.device_put(X, sw.devices()[3])),
    ]
    for call, argument in calls:
        call(argument)
    assert len(entries(folder)) == len(compilations)
    compilations.clear()
    for call, argument in calls:
        sw.jit(call.function)(argument)
    assert compilations == []


def test_compiler_options_are_part_of_the_key(folder, compilations):
    for options in (None, {"xla_cpu_enable_fast_math": True}, {"xla_cpu_enable_fast_math": False}) * 2:
        sw.jit(lambda x: jnp.sin(x) * 2, compiler_options=options)(X)
    assert len(entries(folder)) == len(compilations) == 3


def test_source_lines_are_not_part_of_the_key(folder, compilations):
    function()(X)
    compilations.clear()
    moved = sw.jit(lambda x: jnp.tanh(x) * 3 + 1)  # the same program on another line
    moved(X)
    assert compilations == []


def test_programs_with_callbacks_are_not_cached(folder):
    seen = []
    sw.jit(lambda x: sw.debug.callback(seen.append, x))(X)
    assert len(seen) == 1
    assert entries(folder) == []


def test_short_compilations_are_not_cached_below_the_minimum_time(folder):
    config.update("persistent_cache_min_compile_time_secs", 1000.0)
    function()(X)
    assert entries(folder) == []


def test_the_least_recently_used_entries_are_evicted(folder):
    function()(X)
    size = sum(path.stat().st_size for path in entries(folder))
    config.update("compilation_cache_max_size", 3 * size)
    for times in range(2, 12):
        sw.jit(lambda x, times=times: jnp.tanh(x) * times)(X)
        assert sum(path.stat().st_size for path in entries(folder)) <= 3 * size
    assert len(entries(folder)) >= 1


def test_the_folder_is_accessible_to_its_owner_only(folder):
    function()(X)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_other_users_can_write_to_is_not_used(folder, caplog):
    folder.mkdir(mode=0o700)
    os.chmod(folder, 0o777)
    function()(X)
    assert entries(folder) == []
    assert "other users may write to it" in caplog.text


def test_with_a_key_others_may_write_to_the_folder_but_their_entries_are_not_loaded(folder, compilations, caplog):
    folder.mkdir(mode=0o700)
    os.chmod(folder, 0o777)
    config.update("compilation_cache_key", "secret")
    first = function()(X)
    other = sw.jit(lambda x: jnp.tanh(x) * 5)
    other(X)
    count = len(compilations)
    np.testing.assert_array_equal(function()(X), first)
    assert len(compilations) == count and not caplog.text
    # Valid entries with exchanged names, an entry with another key, and one with a plain digest.
    signed = {entry: entry.read_bytes() for entry in entries(folder)}
    plain = [
        compilation_cache._MAGIC + compilation_cache.hashlib.sha256(each[55:]).digest() + each[55:]
        for each in signed.values()
    ]
    for contents in (list(signed.values())[::-1], plain):
        for entry, content in zip(signed, contents, strict=True):
            entry.write_bytes(content)
        np.testing.assert_array_equal(function()(X), first)
        assert "damaged or has another key" in caplog.text
        caplog.clear()
    config.update("compilation_cache_key", "another secret")
    np.testing.assert_array_equal(function()(X), first)
    assert "damaged or has another key" in caplog.text


def test_a_folder_that_cannot_be_created_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    config.update("compilation_cache_dir", str(tmp_path / "file" / "cache"))
    try:
        function()(X)
    finally:
        config.update("compilation_cache_dir", "")
    assert "cannot be used" in caplog.text


def test_a_loaded_program_can_be_serialized(folder, compilations):
    wanted = function()(X)
    compilations.clear()
    loaded = function().lower(X).compile()
    assert compilations == []
    again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(loaded))
    np.testing.assert_array_equal(again(X), wanted)


@pytest.mark.slow
def test_several_processes_write_concurrently(folder):
    script = (
        "import sys, shardwise as sw, shardwise.numpy as jnp\n"
        "sw.config.update('compilation_cache_dir', sys.argv[1])\n"
        "print(float(sw.jit(lambda x: jnp.tanh(x).sum() * 7)(jnp.arange(9.0))))"
    )

    def run(_):
        command = [sys.executable, "-c", script, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(run, range(3)))) == 1
    assert [path for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_fifo_in_the_compilation_cache_is_no_entry(tmp_path, caplog):
    os.mkfifo(tmp_path / "one.executable")
    assert compilation_cache._read(Folder(tmp_path), "one", "", (), ()) is None
    assert "Is a FIFO, not a regular file" in caplog.text
