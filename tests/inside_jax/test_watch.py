"""Functions that JAX compiles are seen, with the bytes of JAX's executable and the plan of Shardwise."""

import pytest

jax = pytest.importorskip("jax")

from shardwise.compiler.plan.hardware import chip  # noqa: E402
from shardwise.compiler.shardings.mesh import AbstractMesh  # noqa: E402
from shardwise.compiler.traffic import all_gather, all_reduce, one_hop  # noqa: E402
from shardwise.explain.hlo_wire import Collective, Wire, wire  # noqa: E402
from shardwise.inside_jax.explain import trace  # noqa: E402
from shardwise.inside_jax.watch import CompiledCall, watch_compiles  # noqa: E402
from tests.inside_jax import steps  # noqa: E402

pytestmark = pytest.mark.jax


def test_a_function_is_seen_when_it_is_compiled():
    args, seen = steps.arguments(), []
    step = jax.jit(lambda *args: steps.step(*args))  # noqa: PLW0108 - a new function, which JAX has not compiled
    with watch_compiles(seen.append):
        step(*args)
        step(*args)
        jax.jit(lambda x: x + 1)(1.0)  # on one device
    (compiled,) = seen
    assert compiled.wire == wire(step.lower(*args).compile().as_text())
    assert compiled.explain(advise=False).wire_bytes == steps.BYTES


def test_collectives_of_jax_are_priced_as_those_of_plans():
    call = trace(steps.step, tuple(steps.arguments()), {})
    h100, mesh = chip("h100"), AbstractMesh((2, 4, 2), ("node", "data", "model"))
    reduced, gathered, permuted = all_reduce(1e6, 2), all_gather(1e6, 16), one_hop(1e6)
    collectives = Wire(
        (
            Collective("all-reduce", "a", (0, 1), reduced, times=3),
            Collective("all-gather", "b", tuple(range(16)), gathered),
            Collective("collective-permute", "c", (7, 8), permuted),
        )
    )
    expected = 3 * h100.collective_time(reduced, mesh, ("model",))
    expected += h100.collective_time(gathered, mesh, ("node", "data", "model"))
    expected += h100.collective_time(permuted, mesh, ("node",))
    assert CompiledCall(call, collectives).seconds(h100) == pytest.approx(expected)


def test_outside_of_the_block_nothing_is_seen():
    seen = []
    with watch_compiles(seen.append):
        pass
    jax.jit(lambda *args: steps.step(*args))(*steps.arguments())  # noqa: PLW0108
    assert seen == []
