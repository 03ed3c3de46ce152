"""Functions that JAX compiles are seen, with the bytes of JAX's executable and the plan of Shardwise."""

import pytest

jax = pytest.importorskip("jax")

from shardwise.compiler.plan.hardware import chip  # noqa: E402
from shardwise.explain.hlo_wire import wire  # noqa: E402
from shardwise.inside_jax.watch import watch_compiles  # noqa: E402
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
    assert compiled.seconds(chip("h100")) > 0


def test_outside_of_the_block_nothing_is_seen():
    seen = []
    with watch_compiles(seen.append):
        pass
    jax.jit(lambda *args: steps.step(*args))(*steps.arguments())  # noqa: PLW0108
    assert seen == []
