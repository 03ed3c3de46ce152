"""Python control flow in a shard_map outside jit: values that are the same on all devices are concrete, as in JAX."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax

GRID = np.arange(16.0, dtype=np.float32).reshape(4, 4)


def run(function, mesh, out_specs=None, **options):
    spec = sw.P("data", "model")
    return sw.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec if out_specs is None else out_specs, **options
    )


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("check", [True, False])
def test_if_on_a_replicated_value(mesh, sign, check):
    def body(x):
        total = lax.psum(x.sum(), ("data", "model"))
        return x * 2 if total > 0 else -x

    result = run(body, mesh, check_vma=check)(sign * GRID)
    np.testing.assert_array_equal(result, sign * GRID * 2 if sign > 0 else GRID)


def test_while_on_a_replicated_value_and_conversions(mesh):
    seen = []

    def body(x):
        total = lax.pmax(x.max(), ("data", "model"))
        while total > 1:
            x, total = x / 2, total / 2
            seen.append(float(total))
        return x

    np.testing.assert_array_equal(run(body, mesh)(GRID), GRID / 16)
    assert seen == [7.5, 3.75, 1.875, 0.9375]


def test_effects_are_not_repeated(mesh, capfd):
    def count_prints(body):
        sw.block_until_ready(run(body, mesh)(GRID))
        sw.effects_barrier()
        return capfd.readouterr().out.count("a line")

    def straight(x):
        sw.debug.print("a line")
        return x

    def branching(x):
        sw.debug.print("a line")
        return x if lax.psum(x.sum(), ("data", "model")) > 0 else -x

    assert count_prints(branching) == count_prints(straight) > 0


def test_a_varying_value_raises(mesh):
    def body(x):
        return x if x.sum() > 3 else -x

    with pytest.raises(sw.errors.TracerBoolConversionError, match=r"varies along 'data', 'model'.*\n.*\n.*lax.psum"):
        run(body, mesh)(GRID)
    with pytest.raises(sw.errors.TracerBoolConversionError, match="differs between the devices"):
        run(body, mesh, check_vma=False)(GRID)


def test_inside_jit_values_are_not_known(mesh):
    def body(x):
        return x if lax.psum(x.sum(), ("data", "model")) > 0 else -x

    with pytest.raises(sw.errors.TracerBoolConversionError, match="is not known while `body` is traced"):
        sw.jit(run(body, mesh))(GRID)
