"""Random shardings of operands on meshes with Explicit and Auto axes: the shardings of results are those of JAX.

Only types are compared, so functions are traced and not run. Where JAX refuses a call, we may accept it: the devices
exchange what they need. Where JAX accepts a call, we accept it with the same result, except for those in `DIFFERENT`.
"""

from random import Random

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

# JAX's errors are not all public.
REFUSALS = ("ShardingTypeError", "ShardingError", "TypeError", "ValueError", "NotImplementedError")
DRAWS = 16  # specs and meshes per function
MESHES = (((4, 2), ("x", "a")), ((2, 2, 2), ("x", "a", "m")), ((8,), ("x",)), ((2, 4), ("x", "a")))
X, Y, W, B, C = (8, 16), (8, 16), (16, 32), (8, 16, 32), (8, 32, 16)

# name: (function of the library and the operands, shapes of the operands)
FUNCTIONS = {
    "sin": (lambda lib, x: lib.numpy.sin(x), [X]),
    "add": (lambda lib, x, y: x + y, [X, Y]),
    "mul by a row": (lambda lib, x, y: x * y, [X, (16,)]),
    "mul by a column": (lambda lib, x, y: x * y[:, None], [X, (8,)]),
    "maximum": (lambda lib, x, y: lib.numpy.maximum(x, y), [X, Y]),
    "where": (lambda lib, x, y: lib.numpy.where(x > 0, x, y), [X, Y]),
    "power": (lambda lib, x: x**3, [X]),
    "clip": (lambda lib, x: lib.numpy.clip(x, -1, 1), [X]),
    "compare": (lambda lib, x, y: x < y, [X, Y]),
    "astype": (lambda lib, x: x.astype("int32"), [X]),
    "sum": (lambda lib, x: x.sum(), [B]),
    "sum 0": (lambda lib, x: x.sum(0), [B]),
    "sum 1 2": (lambda lib, x: x.sum((1, 2)), [B]),
    "mean": (lambda lib, x: x.mean(1), [B]),
    "max keeping dims": (lambda lib, x: x.max(1, keepdims=True), [B]),
    "prod": (lambda lib, x: lib.numpy.prod(x, 2), [B]),
    "any": (lambda lib, x: lib.numpy.any(x > 0, 0), [X]),
    "argmax": (lambda lib, x: lib.numpy.argmax(x, 1), [B]),
    "logsumexp": (lambda lib, x: lib.nn.logsumexp(x, axis=-1), [X]),
    "softmax": (lambda lib, x: lib.nn.softmax(x), [X]),
    "var": (lambda lib, x: x.var(-1), [X]),
    "transpose": (lambda lib, x: x.transpose(2, 0, 1), [B]),
    "swapaxes": (lambda lib, x: x.swapaxes(0, 1), [X]),
    "matmul": (lambda lib, x, w: x @ w, [X, W]),
    "batched matmul": (lambda lib, x, y: x @ y, [B, C]),
    "einsum": (lambda lib, x, w: lib.numpy.einsum("bij,jk->bik", x, w), [B, (32, 8)]),
    "dot general": (lambda lib, x, y: lib.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), [B, C]),
    "outer": (lambda lib, x, y: x[:, None] * y[None, :], [(8,), (16,)]),
    "expand dims": (lambda lib, x: x[:, None, :, None], [X]),
    "squeeze": (lambda lib, x: lib.numpy.squeeze(x, 1), [(8, 1, 16)]),
    "broadcast": (lambda lib, x: lib.numpy.broadcast_to(x, (4, *X)), [X]),
    "split a dim": (lambda lib, x: x.reshape(8, 4, 4), [X]),
    "merge dims": (lambda lib, x: x.reshape(8, 512), [B]),
    "concatenate": (lambda lib, x, y: lib.numpy.concatenate([x, y], 1), [X, Y]),
    "stack": (lambda lib, x, y: lib.numpy.stack([x, y]), [X, Y]),
    "slice": (lambda lib, x: x[:, 2:10], [X]),
    "flip": (lambda lib, x: lib.numpy.flip(x, 0), [X]),
    "pad": (lambda lib, x: lib.numpy.pad(x, ((0, 0), (1, 1))), [X]),
    "cumsum": (lambda lib, x: lib.numpy.cumsum(x, 1), [X]),
    "sort": (lambda lib, x: lib.numpy.sort(x, 1), [X]),
    "zeros like": (lambda lib, x: lib.numpy.zeros_like(x), [X]),
    "gradient": (lambda lib, x, w: lib.grad(lambda w: lib.numpy.sin(x @ w).sum())(w), [X, W]),
    "gradient of a product": (lambda lib, x, y: lib.grad(lambda x: (x * y).sum())(x), [X, Y]),
    "jvp": (lambda lib, x, y: lib.jvp(lib.numpy.tanh, (x,), (y,))[1], [X, Y]),
    "scan": (lambda lib, x, y: lib.lax.scan(lambda c, row: (c + row, c * 2), x[0], y)[1], [X, Y]),
    "cond": (lambda lib, x: lib.lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: -v, x), [X]),
    "vmap": (lambda lib, x: lib.vmap(lambda row: lib.numpy.sin(row) * row.sum())(x), [X]),
    "nested jit": (lambda lib, x, y: lib.jit(lambda x: x * 2)(x) + y, [X, Y]),
    "checkpoint": (lambda lib, x: lib.grad(lambda x: lib.checkpoint(lib.numpy.sin)(x).sum())(x), [X]),
}
# Functions of which some calls have another result in JAX, and why.
DIFFERENT = {
    "dot general": "a batch dim that only the second operand shards stays sharded; JAX gathers it",
    "merge dims": "if both dims are sharded, shards of the result would not be contiguous: an error; JAX moves data",
}


def random_spec(rng, shape, sizes):
    """Return axes for some dims, which they divide."""
    spec = [None] * len(shape)
    for axis in rng.sample(list(sizes), len(sizes)):
        if rng.random() < 0.6:
            dim = rng.randrange(len(shape))
            axes = (*((spec[dim],) if isinstance(spec[dim], str) else spec[dim] or ()), axis)
            if shape[dim] % np.prod([sizes[each] for each in axes]) == 0:
                spec[dim] = axis if len(axes) == 1 else axes
    return tuple(spec)


def result_spec(library, function, shapes, specs, mesh_shape, kinds):
    """Return the spec of the result along Explicit axes, without trailing Nones; None if the call is refused."""
    sharding = library.sharding
    types = [getattr(sharding.AxisType, kind) for kind in kinds]
    mesh = library.make_mesh(*mesh_shape, axis_types=tuple(types))
    structs = [
        library.ShapeDtypeStruct(
            shape, np.float32, sharding=sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))
        )
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    seen = []

    def traced(*args):
        result = function(library, *args)
        seen.append([entry for entry in library.typeof(result).sharding.spec])
        return result

    with library.set_mesh(mesh):
        try:
            library.jit(traced).trace(*structs)
        except Exception as error:
            if type(error).__name__ not in REFUSALS:
                raise
            return str(error), None
    spec = seen[0]
    while spec and spec[-1] is None:
        spec.pop()
    return "", [entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry for entry in spec]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shardings_of_results_are_those_of_jax(name):
    function, shapes = FUNCTIONS[name]
    both = 0
    for draw in range(DRAWS):
        rng = Random(f"{name} {draw}")
        mesh_shape = rng.choice(MESHES)
        kinds = ["Explicit", *rng.choices(["Explicit", "Explicit", "Auto"], k=len(mesh_shape[1]) - 1)]
        sizes = dict(zip(reversed(mesh_shape[1]), reversed(mesh_shape[0]), strict=True))
        specs = [random_spec(rng, shape, sizes) for shape in shapes]
        case = shapes, specs, mesh_shape, kinds
        error, spec = result_spec(sw, function, *case)
        _, jax_spec = result_spec(jax, function, *case)
        if jax_spec is None:
            continue
        assert spec == jax_spec or name in DIFFERENT, f"{case}: {error or spec}, in JAX {jax_spec}"
        both += spec == jax_spec
    assert both, "no draw was accepted by both"
