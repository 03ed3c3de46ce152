"""The compiler options for GPUs with which collectives and kernels overlap."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.execute.overlap_options import overlap_options
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def local_program(function):
    """Return the program of one of eight devices that hold the rows of a matrix."""
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(sw.make_mesh((8,), ("data",)), P("data")))
    return sw.explain(function)(x).stages.local


def test_programs_with_collectives_on_gpus_use_the_latency_hiding_scheduler():
    assert overlap_options(local_program(jnp.sum), "gpu") == ((SCHEDULER, True),)


def test_a_collective_inside_a_loop_counts():
    def steps(x):
        return sw.lax.fori_loop(0, 3, lambda _, y: y * jnp.tanh(jnp.sum(y)), x)

    assert overlap_options(local_program(steps), "gpu") == ((SCHEDULER, True),)


@pytest.mark.parametrize(("function", "platform"), [(jnp.tanh, "gpu"), (jnp.sum, "cpu"), (jnp.sum, "tpu")])
def test_other_programs_get_no_options(function, platform):
    assert overlap_options(local_program(function), platform) == ()


def test_the_setting_and_xla_flags_take_precedence(monkeypatch):
    local = local_program(jnp.sum)
    with sw.config.override("overlap_collectives", False):
        assert overlap_options(local, "gpu") == ()
    monkeypatch.setenv("XLA_FLAGS", f"--{SCHEDULER}=false")
    assert overlap_options(local, "gpu") == ()


def test_options_of_the_user_override_the_default(monkeypatch):
    seen = []
    executor = sw.execute.executor
    monkeypatch.setattr(executor, "platform_of", lambda device: "gpu")
    load = executor.load
    monkeypatch.setattr(executor, "load", lambda *args: seen.append(args[4]) or load(*args[:4], (), *args[5:]))
    x = sw.device_put(np.ones((8, 4), np.float32), NamedSharding(sw.make_mesh((8,), ("data",)), P("data")))
    for options in (None, {SCHEDULER: False}):
        sw.jit(lambda x: jnp.sum(x) + 1, compiler_options=options)(x)
    assert seen == [((SCHEDULER, True),), ((SCHEDULER, False),)]
