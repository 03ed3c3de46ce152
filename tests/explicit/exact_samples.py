"""Random shardings of operands on meshes with Explicit and Auto axes, in exact mode: types and errors of JAX.

`SHARDWISE_JAX_COMPATIBILITY=exact python -m tests.explicit.exact_samples DRAWS` prints the calls that differ. Functions
are traced and not run. Functions of `numpy` that JAX composes of other primitives are left out; docs/from-jax.md lists
them.
"""

import json
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import jax
import numpy as np

import shardwise as sw
from tests.exact_rows import outcome
from tests.explicit.test_sampled_like_jax import FUNCTIONS, MESHES, B, C, X, Y, random_spec

S, Q = (8, 8, 8), (8, 8, 4)  # stacks of square matrices, and of others
INDEX = np.int32
# Classes of errors in JAX and here that mean the same: ours is a TypeError, and JAX has a private DuplicateSpecError.
SAME_ERRORS = {("!TypeError", "!ShardingTypeError"), ("!Exception", "!ShardingTypeError")}

# name: (function of the library and the operands, shapes of the operands)
MORE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "select_n": (lambda lib, which, x, y: lib.lax.select_n(which > 0, x, y), [X, X, X]),
    "select by a scalar": (lambda lib, which, x, y: lib.lax.select(which.sum() > 0, x, y), [(4,), X, X]),
    "clamp": (lambda lib, low, x, high: lib.lax.clamp(low, x, high), [X, X, X]),
    "merge of the first dims": (lambda lib, x: x.reshape(128, 32), [B]),
    "ravel": (lambda lib, x: x.ravel(), [B]),
    "reshape across dims": (lambda lib, x: x.reshape(16, 8), [X]),
    "split of two dims": (lambda lib, x: x.reshape(4, 2, 4, 4), [X]),
    "split of the first dim": (lambda lib, x: x.reshape(2, 4, 16), [X]),
    "split and merge": (lambda lib, x: x.reshape(4, 2, 512), [B]),
    "concatenate rows": (lambda lib, x, y: lib.numpy.concatenate([x, y], 0), [X, Y]),
    "stack in the middle": (lambda lib, x, y: lib.numpy.stack([x, y], 1), [X, Y]),
    "slice of some rows": (lambda lib, x: x[:4], [X]),
    "slice of 6 columns": (lambda lib, x: x[:, :6], [X]),
    "slice with a stride": (lambda lib, x: x[:, ::2], [X]),
    "index": (lambda lib, x: x[0], [X]),
    "index of a column": (lambda lib, x: x[:, 3], [X]),
    "pad to 16": (lambda lib, x: lib.numpy.pad(x, ((0, 8), (0, 0))), [X]),
    "negative pad": (lambda lib, x: lib.lax.pad(x, 0.0, ((0, 0, 0), (-4, -4, 0))), [X]),
    "roll": (lambda lib, x: lib.numpy.roll(x, 4, 1), [X]),
    "cumprod": (lambda lib, x: lib.numpy.cumprod(x, 0), [X]),
    "cummax": (lambda lib, x: lib.lax.cummax(x, 1), [X]),
    "argsort": (lambda lib, x: lib.numpy.argsort(x, 1), [X]),
    "top_k": (lambda lib, x: lib.lax.top_k(x, 4)[0], [X]),
    "sort of two operands": (lambda lib, x, y: lib.lax.sort((x, y), dimension=0, num_keys=1)[1], [X, Y]),
    "median": (lambda lib, x: lib.numpy.median(x, 1), [X]),
    "dynamic slice": (lambda lib, x: lib.lax.dynamic_slice_in_dim(x, 1, 4, 0), [X]),
    "dynamic index": (lambda lib, x: lib.lax.dynamic_index_in_dim(x, 1, 0), [X]),
    "dynamic update slice": (lambda lib, x, y: lib.lax.dynamic_update_slice(x, y, (0, 0)), [X, (4, 16)]),
    "take": (lambda lib, x: lib.numpy.take(x, lib.numpy.array([0, 2]), 0), [X]),
    "gather": (lambda lib, x, i: x[i.astype(INDEX)], [X, (8,)]),
    "take_along_axis": (lambda lib, x, i: lib.numpy.take_along_axis(x, i.astype(INDEX), 1), [X, X]),
    "set a row": (lambda lib, x: x.at[0].set(1.0), [X]),
    "multiply a row": (lambda lib, x: x.at[3].multiply(2.0), [X]),
    "tile": (lambda lib, x: lib.numpy.tile(x, (1, 2)), [X]),
    "repeat": (lambda lib, x: lib.numpy.repeat(x, 2, axis=1), [X]),
    "tril": (lambda lib, x: lib.numpy.tril(x), [X]),
    "split": (lambda lib, x: lib.lax.split(x, (4, 12), 1)[1], [X]),
    "diff": (lambda lib, x: lib.numpy.diff(x, axis=1), [X]),
    "convolution": (lambda lib, x, w: lib.lax.conv(x, w, (1,), "SAME"), [(8, 4, 16), (8, 4, 3)]),
    "reduce_window": (
        lambda lib, x: lib.lax.reduce_window(x, -np.inf, lib.lax.max, (1, 2), (1, 2), "VALID"),
        [X],
    ),
    "fft": (lambda lib, x: lib.numpy.fft.fft(x).real, [X]),
    "qr": (lambda lib, x: lib.numpy.linalg.qr(x)[0], [Q]),
    "svd": (lambda lib, x: lib.numpy.linalg.svd(x)[1], [Q]),
    "lu": (lambda lib, x: lib.lax.linalg.lu(x)[0], [S]),
    "bitcast": (lambda lib, x: lib.lax.bitcast_convert_type(x, np.int16), [X]),
    "full_like": (lambda lib, x: lib.lax.full_like(x, 2.0), [X]),
    "map": (lambda lib, x: lib.lax.map(lib.numpy.sin, x), [X]),
    "vmap of a product": (lambda lib, x, w: lib.vmap(lambda row, w: row @ w, (0, None))(x, w), [X, (16, 32)]),
    "ragged_dot": (
        lambda lib, x, w, sizes: lib.lax.ragged_dot(x, w, sizes.astype(INDEX)),
        [(16, 8), (4, 8, 4), (4,)],
    ),
    "reduce": (lambda lib, x: lib.lax.reduce(x, 0.0, lib.lax.add, (1,)), [X]),
    "outer product": (lambda lib, x, y: lib.numpy.outer(x, y), [(8,), (16,)]),
    "contraction of a stack": (lambda lib, x, y: lib.numpy.einsum("bij,bjk->bk", x, y), [B, C]),
}


def differences(draws: int) -> list[str]:
    """Return the calls that JAX and Shardwise type differently, of this many for each function."""
    found = []
    for name, (function, shapes) in {**FUNCTIONS, **MORE}.items():
        for draw in range(draws):
            rng = Random(f"{name} {draw}")
            mesh_shape = rng.choice(MESHES)
            kinds = ["Explicit", *rng.choices(["Explicit", "Explicit", "Auto"], k=len(mesh_shape[1]) - 1)]
            sizes = dict(zip(reversed(mesh_shape[1]), reversed(mesh_shape[0]), strict=True))
            specs = [random_spec(rng, shape, sizes) for shape in shapes]
            theirs, ours = (
                outcome(library, lambda lib: traced_type(lib, function, shapes, specs, mesh_shape, kinds))  # noqa: B023
                for library in (jax, sw)
            )
            if theirs != ours and (theirs, ours) not in SAME_ERRORS:
                found.append(f"{name} of {shapes} in {specs} on {mesh_shape} {kinds}: {ours}, in JAX {theirs}")
    return found


def traced_type(library: Any, function: Any, shapes: Any, specs: Any, mesh_shape: Any, kinds: Any) -> str:
    """Return the text of the type of a result."""
    sharding = library.sharding
    types = tuple(getattr(sharding.AxisType, kind) for kind in kinds)
    mesh = library.make_mesh(*mesh_shape, axis_types=types)
    structs = [
        library.ShapeDtypeStruct(shape, np.float32, sharding=sharding.NamedSharding(mesh, library.P(*spec)))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    texts: list[str] = []

    def traced(*args: Any) -> Any:
        result = function(library, *args)
        texts.append(str(library.typeof(result)))
        return result

    with library.set_mesh(mesh):
        library.jit(traced).trace(*structs)
    return texts[0]


if __name__ == "__main__":
    print(json.dumps(differences(int(sys.argv[1]))))
