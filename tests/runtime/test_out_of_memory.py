"""Errors of programs that run out of memory."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base._jaxlib import RuntimeFailure
from shardwise.errors import JaxRuntimeError, OutOfMemoryError
from shardwise.runtime.out_of_memory import check_memory, size
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def test_out_of_memory_error_names_the_function_and_the_memory_it_needs():
    with pytest.raises(OutOfMemoryError) as caught:
        jnp.zeros((1 << 45,))  # more than the address space
    text = str(caught.value)
    assert text.startswith(
        "`full` ran out of memory. Each device needs 128.0 TiB: 128.0 TiB for results.\n  XLA says: "
    )
    assert "Shard its arrays over more devices" in text
    assert isinstance(caught.value, JaxRuntimeError) and isinstance(caught.value.__cause__, RuntimeFailure)


def test_an_asynchronous_failure_is_raised_by_block_until_ready(mesh):
    """The call itself returns before the failure, and other programs still run."""
    enormous = sw.jit(lambda x: jnp.broadcast_to(x, (1 << 35, 1024)) * 2)
    for wait in (np.asarray, sw.block_until_ready, lambda x: x.block_until_ready()):
        with pytest.raises(OutOfMemoryError, match=r"ran out of memory\."):
            wait(enormous(jnp.ones(1024)))
    made = sw.jit(lambda: jnp.zeros((1 << 46, 2)), out_shardings=NamedSharding(mesh, P("data")))
    with pytest.raises(OutOfMemoryError, match=r"ran out of memory\."):
        made().block_until_ready()
    assert float(sw.jit(jnp.sum)(sw.device_put(np.ones(8), NamedSharding(mesh, P("data"))))) == 8.0


def test_check_memory_ignores_other_failures():
    check_memory(RuntimeFailure("INVALID_ARGUMENT: no"), "`f`")
    with pytest.raises(
        OutOfMemoryError, match=r"^the compilation of `f` ran out of memory\.\n  XLA says: Out of memory"
    ):
        check_memory(RuntimeFailure("RESOURCE_EXHAUSTED: Out of memory while it folds"), "the compilation of `f`")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**50, "1024.0 TiB")],
)
def test_byte_counts_are_formatted_with_units(count, text):
    assert size(count) == text
