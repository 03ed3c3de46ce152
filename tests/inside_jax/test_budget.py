"""comm_budget of programs of real JAX."""

import pytest

jax = pytest.importorskip("jax")

from shardwise import inside_jax  # noqa: E402
from shardwise.explain.budget import CommBudgetExceeded  # noqa: E402
from tests.inside_jax import steps  # noqa: E402

pytestmark = pytest.mark.jax


def test_every_call_counts_also_after_the_first():
    args = steps.arguments()
    step = inside_jax.jit(steps.step)
    step(*args)
    with inside_jax.comm_budget(all_reduce=4, bytes=steps.BYTES):
        step(*args)
    with (
        pytest.raises(CommBudgetExceeded, match="8 all_reduce, allowed: 4"),
        inside_jax.comm_budget(all_reduce=4),
    ):
        step(*args)
        step(*args)


def test_functions_of_jax_do_not_count():
    with inside_jax.comm_budget(bytes=0):
        jax.jit(steps.step)(*steps.arguments())
