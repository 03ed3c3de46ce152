"""Cases: errors of programs on meshes that span processes. All processes raise the same error, and go on."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import OutOfMemoryError, ShardingError
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


def mesh():
    return Mesh(np.array(sw.devices()), ("x",))


def on_mesh(host, *spec):
    return sw.device_put(np.asarray(host, np.float32), NamedSharding(mesh(), P(*spec)))


def check_unharmed():
    """The processes still run programs together."""
    count = sw.device_count()
    assert float(sw.jit(jnp.sum)(on_mesh(np.ones(count), "x"))) == count


def logarithm(x):
    return jnp.log(x - 0.5) * 2


def ratio(x):
    return sw.jit(lambda y, total: y / total)(x, x.sum()) * 2.0


def case_nan():
    """Fault 23: the NaN is in a shard of the last process only."""
    count = sw.device_count()
    host = np.ones(count + 1)  # an uneven dim: the padding is not checked
    host[-1] = 0
    messages = []
    with sw.debug_nans(True):
        for function, values in ((logarithm, host), (ratio, np.zeros(count))):
            with pytest.raises(FloatingPointError) as caught:
                sw.jit(function)(on_mesh(values, "x"))
            messages.append(str(caught.value))
        has_nan = sw.jit(lambda x: x * 2)(on_mesh(np.where(host == 0, np.nan, 1.0), "x"))  # an argument had it already
        donated = sw.jit(logarithm, donate_argnums=0)
        with pytest.raises(FloatingPointError, match=r"nan in a result of `logarithm`"):
            donated(on_mesh(host, "x"))
    with sw.debug_infs(True), pytest.raises(FloatingPointError, match=r"inf in the result of `exp` at error_cases\.py"):
        sw.jit(jnp.exp)(on_mesh(200 * (1 - host), "x"))
    assert has_nan.shape == (count + 1,)
    line = logarithm.__code__.co_firstlineno + 1
    assert messages[0].startswith(f"nan in the result of `log` at error_cases.py:{line}, in `logarithm`.")
    assert f"nan in the result of `div` at error_cases.py:{line + 4}, in `ratio`." in messages[1]
    check_unharmed()
    return messages


def case_out_of_memory():
    """Fault 24: an array of 4 TB or more, sharded over the processes and not."""
    elements = 1 << 40
    count, sharding = sw.device_count(), NamedSharding(mesh(), P("x"))
    each = f"{4 // count}.0 TiB" if count <= 4 else "512.0 GiB"
    messages = []
    for make in (
        lambda: jnp.zeros(elements, device=sharding),
        sw.jit(lambda: jnp.zeros(elements) + 1, out_shardings=sharding),
    ):
        with pytest.raises(
            OutOfMemoryError, match=f"Each of its {count} devices needs {each} for this array"
        ) as caught:
            make().block_until_ready()
        messages.append(str(caught.value))
    with pytest.raises(OutOfMemoryError, match=r"Each device needs 4\.0 TiB: 4\.0 TiB for results"):
        jnp.zeros(elements)
    check_unharmed()
    return messages


def case_wrong_meshes_and_specs():
    """Fault 25: a mesh that is larger than the devices, an unknown axis, and an axis that is used twice."""
    count = sw.device_count()
    x = on_mesh(np.ones((count, 6)), "x")

    def constrain(*spec):
        return sw.jit(lambda x: sw.lax.with_sharding_constraint(x, NamedSharding(mesh(), P(*spec))))(x)

    calls = {
        "larger mesh": lambda: sw.make_mesh((2 * count,), ("x",)),
        "larger reshape": lambda: sw.make_mesh((count, 2), ("x", "y")),
        "unknown axis": lambda: on_mesh(np.ones((count, 6)), "x", "model"),
        "unknown axis in jit": lambda: constrain(None, "model"),
        "axis twice": lambda: on_mesh(np.ones((count, 6)), "x", "x"),
        "axis twice in jit": lambda: constrain("x", "x"),
        "too many dims": lambda: constrain(None, None, "x"),
        "unknown axis of shard_map": lambda: sw.shard_map(
            lambda x: x, mesh=mesh(), in_specs=P("model"), out_specs=P("x")
        )(x),
    }
    messages = {}
    for name, call in calls.items():
        with pytest.raises((ShardingError, ValueError)) as caught:
            call()
        messages[name] = str(caught.value)
    check_unharmed()
    return messages
