"""The shardings of results along Explicit axes: as JAX's types have them, inside and outside jit."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# (name, function of the library, numpy and the arrays, shapes and specs of the operands)
X, W, V = (8, 4), (4, 6), (4,)
CONVOLUTION = [((8, 2, 6), ("X", None, None)), ((4, 2, 3), (None, None, None))]


def spec(library, *entries):
    return library.sharding.PartitionSpec(*entries)


CASES = [
    ("sin", lambda lib, x: lib.numpy.sin(x), [(X, ("X", None))]),
    ("sum of all", lambda lib, x: x.sum(), [(X, ("X", "Y"))]),
    ("sum of a sharded dim", lambda lib, x: x.sum(0), [(X, ("X", "Y"))]),
    ("max keeping dims", lambda lib, x: lib.numpy.max(x, 1, keepdims=True), [(X, ("X", "Y"))]),
    ("add with a scalar", lambda lib, x: x + 1, [(X, ("X", "Y"))]),
    ("add of sharded and replicated", lambda lib, x, y: x + y, [(X, ("X", None)), (X, (None, "Y"))]),
    ("add of a row", lambda lib, x, y: x + y, [(X, ("X", "Y")), (V, ("Y",))]),
    ("transpose", lambda lib, x: x.T, [(X, ("X", "Y"))]),
    ("product with a replicated matrix", lambda lib, x, w: x @ w, [(X, ("X", None)), (W, (None, None))]),
    ("product with a sharded matrix", lambda lib, x, w: x @ w, [(X, ("X", None)), (W, (None, "Y"))]),
    (
        "batched product",
        lambda lib, x, y: lib.numpy.einsum("bij,bjk->bik", x, y),
        [((8, 2, 4), ("X", None, None)), ((8, 4, 2), ("X", None, "Y"))],
    ),
    ("split of a dim", lambda lib, x: x.reshape(4, 2, 4), [(X, ("X", "Y"))]),
    ("merge of dims", lambda lib, x: x.reshape(32), [(X, ("X", None))]),
    ("expand dims", lambda lib, x: x[None, :, :, None], [(X, ("X", "Y"))]),
    ("squeeze", lambda lib, x: lib.numpy.squeeze(x, 1), [((8, 1, 4), ("X", None, "Y"))]),
    ("broadcast", lambda lib, x: lib.numpy.broadcast_to(x, (3, 8, 4)), [(X, ("X", "Y"))]),
    ("where", lambda lib, x, y: lib.numpy.where(x > 0, x, y), [(X, ("X", None)), (X, ("X", None))]),
    ("softmax", lambda lib, x: lib.nn.softmax(x), [(X, ("X", None))]),
    ("argmax", lambda lib, x: lib.numpy.argmax(x, 1), [(X, ("X", None))]),
    ("sort of an unsharded dim", lambda lib, x: lib.numpy.sort(x, 1), [(X, ("X", None))]),
    ("cumsum of an unsharded dim", lambda lib, x: lib.numpy.cumsum(x, 1), [(X, ("X", None))]),
    ("slice of an unsharded dim", lambda lib, x: x[:, 1:3], [(X, ("X", None))]),
    ("astype", lambda lib, x: x.astype("bfloat16"), [(X, ("X", "Y"))]),
    ("zeros_like", lambda lib, x: lib.numpy.zeros_like(x) + x, [(X, ("X", "Y"))]),
    ("concatenate of an unsharded dim", lambda lib, x, y: lib.numpy.concatenate([x, y], 1), [(X, ("X", None))] * 2),
    ("stack", lambda lib, x, y: lib.numpy.stack([x, y]), [(X, ("X", "Y"))] * 2),
    ("mean and rsqrt", lambda lib, x: lib.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1), [(X, ("X", "Y"))]),
    ("merge of dims that two axes shard", lambda lib, x: x.reshape(8), [((4, 2), ("X", "Y"))]),
    ("split into dims of two axes", lambda lib, x: x.reshape(4, 2, 3), [((8, 3), (("X", "Y"), None))]),
    (
        "reshape with out_sharding",
        lambda lib, x: lib.numpy.reshape(x, (2, 16), out_sharding=spec(lib, "Y")),
        [(X, ("X",))],
    ),
    ("dynamic slice", lambda lib, x: lib.lax.dynamic_slice_in_dim(x, 1, 4), [(X, ("X", "Y"))]),
    (
        "dynamic update slice",
        lambda lib, x, y: lib.lax.dynamic_update_slice(x, y, (3, 0)),
        [(X, ("X", "Y")), ((4, 4), ("X", "Y"))],
    ),
    (
        "lookup with out_sharding",
        lambda lib, x: x.at[lib.numpy.array([0, 2, 4, 6])].get(out_sharding=spec(lib, "X")),
        [(X, (None, "Y"))],
    ),
    (
        "update with out_sharding",
        lambda lib, x: x.at[lib.numpy.array([0, 2])].multiply(2.0, out_sharding=spec(lib, None, "Y")),
        [(X, (None, "Y"))],
    ),
    (
        "segment_sum with out_sharding",
        lambda lib, x: lib.ops.segment_sum(x, lib.numpy.arange(8) // 2, 4, out_sharding=spec(lib, "X")),
        [(X, (None, "Y"))],
    ),
    (
        "gradient",
        lambda lib, x, w: lib.grad(lambda w: lib.numpy.sin(x @ w).sum())(w),
        [(X, ("X", None)), (W, (None, "Y"))],
    ),
    ("vmap over a sharded dim", lambda lib, x: lib.vmap(lambda row: row * 2)(x), [(X, ("X", "Y"))]),
    ("vmap over the last dim", lambda lib, x: lib.vmap(lib.numpy.sin, in_axes=1, out_axes=1)(x), [(X, ("X", "Y"))]),
    (
        "vmap of a reshard",
        lambda lib, x: lib.vmap(lambda row: lib.sharding.reshard(row, spec(lib, None)))(x),
        [(X, ("X", "Y"))],
    ),
    (
        "scan",
        lambda lib, x, w: lib.lax.scan(lambda c, v: (c + v, c * v), x, w)[1],
        [((4,), ("Y",)), ((3, 4), (None, "Y"))],
    ),
    ("cond", lambda lib, x: lib.lax.cond(x.sum() > 0, lib.numpy.sin, lambda v: -v, x), [(X, ("X", "Y"))]),
    ("remat", lambda lib, x: lib.grad(lib.checkpoint(lambda x: lib.numpy.sin(x).sum()))(x), [(X, ("X", "Y"))]),
    ("convolution of a sharded batch", lambda lib, x, w: lib.lax.conv(x, w, (1,), "SAME"), CONVOLUTION),
]


def result_spec(library, function, operands, under_jit):
    """Return the spec of the result, without trailing Nones, and its elements."""
    sharding = library.sharding
    mesh = library.make_mesh((4, 2), ("X", "Y"), axis_types=(sharding.AxisType.Explicit,) * 2)
    arrays = [
        library.device_put(x, sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))) for x, spec in operands
    ]
    with library.set_mesh(mesh):
        call = (
            library.jit(lambda *args: function(library, *args)) if under_jit else lambda *args: function(library, *args)
        )
        result = call(*arrays)
        spec = list(library.typeof(result).sharding.spec)
    while spec and spec[-1] is None:
        spec.pop()
    return spec, np.asarray(result, np.float32)


@pytest.mark.parametrize("under_jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize(("function", "operands"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_types_of_results_are_those_of_jax(function, operands, under_jit):
    arrays = [(numbers(*shape), spec) for shape, spec in operands]
    spec, result = result_spec(sw, function, arrays, under_jit)
    jax_spec, jax_result = result_spec(jax, function, arrays, under_jit)
    assert spec == jax_spec
    np.testing.assert_allclose(result, jax_result, rtol=1e-5, atol=1e-5)
