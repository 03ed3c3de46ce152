"""Programs for each row of the table of differences in docs/from-jax.md, run with JAX and Shardwise in one process.

`python -m tests.exact_rows` prints, for each row and each program, what both libraries do. The environment selects the
mode: `SHARDWISE_JAX_COMPATIBILITY=exact` makes both columns equal.
"""

import builtins
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import shardwise as sw

Program = Callable[[Any], Any]  # a function of the library


def mesh_of(library: Any, kind: str | None = None) -> Any:
    """Return a 4 × 2 mesh, whose axes have the type `kind`; by default, the library's default."""
    types = {} if kind is None else {"axis_types": (getattr(library.sharding.AxisType, kind),) * 2}
    return library.make_mesh((4, 2), ("data", "model"), **types)


def put(library: Any, shape: tuple[int, ...], *spec: Any, kind: str = "Auto", **options: Any) -> Any:
    """Return an array of ascending numbers with a sharding."""
    sharding = library.NamedSharding(mesh_of(library, kind), library.P(*spec), **options)
    return library.device_put(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), sharding)


def auto(library: Any, *spec: Any) -> Any:
    return library.NamedSharding(mesh_of(library, "Auto"), library.P(*spec))


@contextmanager
def explicit(library: Any) -> Iterator[None]:
    """Set a mesh with Explicit axes."""
    with library.set_mesh(mesh_of(library, "Explicit")):
        yield


def typed(function: Callable[..., Any], *operands: tuple[tuple[int, ...], tuple[Any, ...]]) -> Program:
    """Return the program that applies a function to operands with these shapes and Explicit shardings, under jit."""

    def program(library: Any) -> Any:
        with explicit(library):
            args = [put(library, shape, *spec, kind="Explicit") for shape, spec in operands]
            return library.jit(lambda *xs: function(library, *xs))(*args)

    return program


def failing_callback(library: Any) -> Any:
    def fail(x: Any) -> Any:
        raise KeyError("no such row")

    result = library.ShapeDtypeStruct((), np.float32)
    return library.jit(lambda x: library.pure_callback(fail, result, x))(np.float32(1)).block_until_ready()


def numbers_on_host(library: Any) -> Any:
    return put(library, (8,), "data", memory_kind="pinned_host")


def traced_text(library: Any) -> list[str]:
    texts: list[str] = []
    library.jit(lambda x: texts.append(str(library.typeof(x))) or x)(np.zeros((2, 3), np.int8))
    return texts


def manual_text(library: Any) -> list[str]:
    texts: list[str] = []
    library.shard_map(
        lambda x: texts.append(str(library.typeof(x))) or x,
        mesh=mesh_of(library, "Auto"),
        in_specs=library.P("data"),
        out_specs=library.P("data"),
    )(np.zeros(8, np.float32))
    return texts[:1]


def unreduced_text(library: Any) -> list[str]:
    with explicit(library):
        x = put(library, (8,), "data", kind="Explicit")
        total = library.lax.reduce_sum(x, (0,), out_sharding=library.P(unreduced={"data"}))
        return [str(total), repr(total)]


SIX = np.ones(6, np.float32)
ROWS: dict[str, dict[str, Program]] = {
    "axes of `make_mesh`": {"axis types": lambda lib: [str(kind) for kind in mesh_of(lib).axis_types]},
    "a flat list of devices for a `Mesh` with several axes": {
        "Mesh": lambda lib: dict(lib.sharding.Mesh(lib.devices(), ("data", "model")).shape),
        "one axis": lambda lib: dict(lib.sharding.Mesh(lib.devices(), ("data",)).shape),
    },
    "a dim that the number of shards does not divide": {
        "device_put": lambda lib: lib.device_put(SIX, auto(lib, "data")),
        "in_shardings": lambda lib: lib.jit(lambda x: x + 1, in_shardings=auto(lib, "data"))(SIX),
        "out_shardings": lambda lib: lib.jit(lambda x: x + 1, out_shardings=auto(lib, "data"))(SIX),
        "constraint": lambda lib: lib.jit(lambda x: lib.lax.with_sharding_constraint(x, auto(lib, "data")))(SIX),
        "constraint of two dims": lambda lib: lib.jit(
            lambda x: lib.lax.with_sharding_constraint(x, auto(lib, "data", "model"))
        )(np.ones((6, 4), np.float32)),
        "constraint along two axes": lambda lib: lib.jit(
            lambda x: lib.lax.with_sharding_constraint(x, auto(lib, ("model", "data")))
        )(SIX),
        "eager constraint": lambda lib: lib.lax.with_sharding_constraint(SIX, auto(lib, "data")),
        "callback": lambda lib: lib.make_array_from_callback((6,), auto(lib, "data"), lambda index: SIX[index]),
        "lower": lambda lib: lib.jit(lambda x: x).lower(
            lib.ShapeDtypeStruct((6,), np.float32, sharding=auto(lib, "data"))
        ),
        "shard_shape": lambda lib: auto(lib, "data").shard_shape((6,)),
        "planned result": lambda lib: lib.jit(lambda x: x[:7])(put(lib, (8,), "data")),
        "reshard": lambda lib: lib.sharding.reshard(SIX, lib.NamedSharding(mesh_of(lib, "Explicit"), lib.P("data"))),
    },
    "None in a spec for a dim that the array lacks": {
        "device_put": lambda lib: lib.device_put(np.ones(8, np.float32), auto(lib, "data", None)),
        "scalar": lambda lib: lib.device_put(1.0, auto(lib, None)),
        "in_shardings": lambda lib: lib.jit(lambda x: x, in_shardings=auto(lib, "data", None))(np.ones(8)),
        "out_shardings": lambda lib: lib.jit(lambda x: x.sum(), out_shardings=auto(lib, None))(np.ones(8)),
        "constraint": lambda lib: lib.jit(lambda x: lib.lax.with_sharding_constraint(x, auto(lib, None, None)))(
            np.ones(8)
        ),
        "struct": lambda lib: lib.ShapeDtypeStruct((8,), np.float32, sharding=auto(lib, "data", None)),
        "in_specs": lambda lib: lib.shard_map(
            lambda x: x, mesh=mesh_of(lib, "Auto"), in_specs=lib.P("data", None), out_specs=lib.P("data")
        )(np.ones(8, np.float32)),
        "out_specs": lambda lib: lib.shard_map(
            lambda x: x, mesh=mesh_of(lib, "Auto"), in_specs=lib.P("data"), out_specs=lib.P("data", None)
        )(np.ones(8, np.float32)),
        "shard_shape": lambda lib: repr(auto(lib, "data", None).shard_shape((8,))),
        "callback": lambda lib: lib.make_array_from_callback(
            (8,), auto(lib, "data", None), lambda index: np.ones(8, np.float32)[index]
        ),
        "zeros": lambda lib: lib.numpy.zeros(8, device=auto(lib, "data", None)),
    },
    "a committed argument whose sharding differs from `in_shardings`": {
        "call": lambda lib: lib.jit(lambda x: x, in_shardings=auto(lib, "model"))(put(lib, (8,), "data")),
        "equal": lambda lib: lib.jit(lambda x: x, in_shardings=auto(lib, "data"))(put(lib, (8,), "data")),
    },
    "an exception in a callback": {"pure_callback": failing_callback},
    "results of operands in host memory": {
        "add": lambda lib: (numbers_on_host(lib) + 1).sharding.memory_kind,
        "jit": lambda lib: lib.jit(lambda x: lib.numpy.sin(x) * 2)(numbers_on_host(lib)).sharding.memory_kind,
        "mixed": lambda lib: (numbers_on_host(lib) + put(lib, (8,), "data")).sharding.memory_kind,
        "moved": lambda lib: (
            lib.jit(lambda x, y: lib.device_put(x, lib.memory.Space.Device) + y)(
                numbers_on_host(lib), put(lib, (8,), "data")
            ).sharding.memory_kind
        ),
    },
    "Explicit axes: slices, concatenations, sorts and cumulative sums along a sharded dim, uneven dims": {
        "slice": typed(lambda lib, x: x[:6], ((8,), ("data",))),
        "slice that the axis divides": typed(lambda lib, x: x[:4], ((8,), ("data",))),
        "index": typed(lambda lib, x: x[0], ((8, 4), ("data", None))),
        "concatenation": typed(lambda lib, x, y: lib.numpy.concatenate([x, y]), ((8,), ("data",)), ((8,), (None,))),
        "concatenation of equal shardings": typed(
            lambda lib, x, y: lib.numpy.concatenate([x, y]), ((8,), ("data",)), ((8,), ("data",))
        ),
        "sort": typed(lambda lib, x: lib.numpy.sort(x), ((8,), ("data",))),
        "sort along another dim": typed(lambda lib, x: lib.numpy.sort(x, axis=1), ((8, 4), ("data", None))),
        "cumsum": typed(lambda lib, x: lib.numpy.cumsum(x), ((8,), ("data",))),
        "top_k": typed(lambda lib, x: lib.lax.top_k(x, 2)[0], ((8,), ("data",))),
        "pad": typed(lambda lib, x: lib.numpy.pad(x, 1), ((8,), ("data",))),
        "rows": lambda lib: [float(row.sum()) for row in put(lib, (8, 4), "data", kind="Explicit")],
        "gather": typed(lambda lib, x: x[lib.numpy.array([1, 5])], ((8,), ("data",))),
        "where": typed(lambda lib, x, y: lib.numpy.where(x > 0, x, y), ((8,), ("data",)), ((8,), (None,))),
        "where with a scalar": typed(lambda lib, x: lib.numpy.where(x > 3, x, 0.0), ((8,), ("data",))),
        "reshape of two dims": typed(lambda lib, x: x.reshape(4, 2, 2, 2), ((8, 4), ("data", "model"))),
        "vmap over different shardings": typed(
            lambda lib, x, y: lib.vmap(lib.numpy.add)(x, y), ((8,), ("data",)), ((8,), (None,))
        ),
        "vmap with a number": typed(
            lambda lib, x: lib.vmap(lib.numpy.add, in_axes=(0, None))(x, 0.5), ((8,), ("data",))
        ),
        "scan along a sharded dim": typed(
            lambda lib, x: lib.lax.scan(lambda c, row: (c, row), 0.0, x)[1], ((8,), ("data",))
        ),
        "constraint of another sharding": typed(
            lambda lib, x: lib.lax.with_sharding_constraint(x, lib.P("model")), ((8,), ("data",))
        ),
    },
    "Explicit axes: a batch dim that only the second operand of a product shards": {
        "dot_general": typed(
            lambda lib, x, y: lib.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
            ((8, 2, 4), (None, "model", None)),
            ((8, 4, 2), ("data", None, None)),
        ),
        "matmul": typed(lambda lib, x, y: x @ y, ((8, 2, 4), (None,)), ((8, 4, 2), ("data",))),
        "gradient": typed(
            lambda lib, x, y: lib.grad(lambda y: lib.numpy.einsum("bij,bjk->bik", x, y).sum())(y),
            ((8, 2, 4), (None,)),
            ((8, 4, 2), ("data",)),
        ),
    },
    "Explicit axes: merging two dims that are both sharded": {
        "reshape": typed(lambda lib, x: x.reshape(32), ((8, 4), ("data", "model"))),
        "reshape with a third dim": typed(lambda lib, x: x.reshape(32, 2), ((8, 4, 2), ("model", "data", None))),
        "only the second dim": typed(lambda lib, x: x.reshape(32), ((8, 4), (None, "data"))),
        "gradient": typed(
            lambda lib, x: lib.grad(lambda x: (x.reshape(32) ** 2).sum())(x), ((8, 4), ("data", "model"))
        ),
    },
    "text of types, meshes and shardings": {
        "array": lambda lib: [str(lib.typeof(put(lib, (8,), "data"))), repr(lib.typeof(put(lib, (8,), "data")))],
        "Explicit": lambda lib: str(lib.typeof(put(lib, (8, 4), "data", ("model",), kind="Explicit"))),
        "weak": lambda lib: [str(lib.typeof(1.0)), repr(lib.typeof(1.0))],
        "others": lambda lib: [str(lib.typeof(lib.random.key(0))), str(lib.typeof(np.zeros(2, lib.numpy.bfloat16)))],
        "traced": traced_text,
        "manual": manual_text,
        "mesh": lambda lib: [text(mesh_of(lib, kind)) for text in (str, repr) for kind in ("Auto", "Explicit")],
        "specs": lambda lib: [str(lib.P(*spec)) for spec in ((), ("data",), (None,), (("data", "model"), None))],
        "unreduced spec": lambda lib: repr(lib.P("data", unreduced={"model"})),
        "sharding": lambda lib: [
            str(auto(lib, "data")),
            repr(numbers_on_host(lib).sharding),
            repr(lib.sharding.SingleDeviceSharding(lib.devices()[1])),
        ],
        "unreduced array": unreduced_text,
    },
}


def outcome(library: Any, program: Program) -> Any:
    """Return the result of a program, or `!` and the class of its error: JAX's own classes, or a builtin one."""
    try:
        result = program(library)
    except Exception as error:
        public = {"ShardingTypeError", "JaxRuntimeError"}
        names = [cls.__name__ for cls in type(error).__mro__]
        return "!" + next(name for name in names if name in public or hasattr(builtins, name))
    if not isinstance(result, library.Array):
        return result if isinstance(result, (str, list)) else repr(result)
    spec = [entry for entry in result.sharding.spec]
    while spec and spec[-1] is None:
        spec.pop()
    return [str(library.typeof(result)), spec, np.asarray(result, np.float32).tolist()]


def outcomes() -> dict[str, dict[str, list[Any]]]:
    """Return, for each row and program, what JAX does and what Shardwise does."""
    return {
        row: {name: [outcome(library, program) for library in (jax, sw)] for name, program in programs.items()}
        for row, programs in ROWS.items()
    }


if __name__ == "__main__":
    print(json.dumps(outcomes()))
