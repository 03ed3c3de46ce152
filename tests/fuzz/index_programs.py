"""Random programs of index ops, with indices that may be out of bounds, and their meaning in numpy.

`evaluate` and `simulate` cannot see faults of XLA, and share their definition of an op with its other rules. Here every
step has a second definition in plain numpy, and the program runs on devices, with random layouts before, between and
after the steps. All values are small integers, so results must be equal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import shardwise
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.sharding import NamedSharding
from tests.fuzz.check import device_mesh
from tests.fuzz.layouts import Spec, partition_spec, random_mesh, random_spec, spec_text
from tests.fuzz.unoptimized import UNOPTIMIZED

DTYPES = tuple(np.dtype(dtype) for dtype in (np.float32, np.int32, ml_dtypes.bfloat16))
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
COMBINE: dict[str, Any] = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
FILL = -7

Function = Callable[[Any, Sequence[Any]], Any]  # of the array and of the operands of a step


@dataclass(frozen=True)
class Step:
    """One op: its text, its operands, and the op on devices and in numpy."""

    text: str
    operands: tuple[np.ndarray, ...]
    on_devices: Function
    in_numpy: Function
    traced: bool = True  # whether the operands are arguments of the program or constants


@dataclass
class IndexProgram:
    """An array, the steps that are applied to it in turn, and the specs of the argument and of the result."""

    seed: int
    mesh: dict[str, int]
    start: np.ndarray
    in_spec: Spec
    steps: list[Step] = field(default_factory=list)
    out_spec: Spec | None = None

    def __str__(self) -> str:
        specs = f"in {spec_text(self.in_spec)}, out {spec_text(self.out_spec)}"
        head = f"seed {self.seed}: {self.start.dtype}{self.start.shape} on mesh {self.mesh}, {specs}"
        return "\n  ".join([head, *(step.text for step in self.steps)])

    def expected(self) -> np.ndarray:
        """Return the result in numpy."""
        x = self.start
        for step in self.steps:
            x = step.in_numpy(x, step.operands)
        return x

    def run(self, compiler_options: dict[str, str] | None = None) -> np.ndarray:
        """Run the program on devices."""
        mesh = device_mesh(tuple(self.mesh.values()), tuple(self.mesh))

        def function(x: Any, operands: Sequence[Sequence[Any]]) -> Any:
            for step, traced in zip(self.steps, operands, strict=True):
                x = step.on_devices(x, traced if step.traced else step.operands)
            return x

        out = None if self.out_spec is None else NamedSharding(mesh, partition_spec(self.out_spec))
        start = shardwise.device_put(self.start, NamedSharding(mesh, partition_spec(self.in_spec)))
        operands = [step.operands if step.traced else () for step in self.steps]
        jitted = shardwise.jit(function, out_shardings=out, compiler_options=compiler_options)
        return np.asarray(jitted(start, operands))


def check(program: IndexProgram) -> None:
    """Raise AssertionError if devices and numpy disagree."""
    expected, actual = program.expected(), program.run()
    if np.array_equal(actual, expected) and actual.dtype == expected.dtype:
        return
    unoptimized = program.run(UNOPTIMIZED)
    cause = "an optimization of XLA" if np.array_equal(unoptimized, expected) else "not an optimization of XLA"
    raise AssertionError(f"{program}\ndevices:\n{actual}\nnumpy:\n{expected}\nThe cause is {cause}.")


def random_program(seed: int) -> IndexProgram:
    """Return the program of this seed."""
    rng = Random(f"index {seed}")
    mesh = random_mesh(rng)
    shape = tuple(rng.choice(SIZES) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    start = _integers(rng, shape, rng.choice(DTYPES))
    program = IndexProgram(seed, mesh, start, random_spec(rng, shape, mesh))
    x = start
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(KINDS)
        step = kind(rng, x) if kind is not _constrain else _constrain(rng, x, mesh)
        if step is not None:
            program.steps.append(step)
            x = step.in_numpy(x, step.operands)
    program.out_spec = random_spec(rng, x.shape, mesh) if rng.random() < 0.7 else None
    return program


def _integers(rng: Random, shape: Sequence[int], dtype: Any) -> np.ndarray:
    return np.random.default_rng(rng.getrandbits(32)).integers(-3, 4, shape).astype(dtype)


def _index(rng: Random, size: int) -> int:
    """Return an index that is out of bounds in one of three cases."""
    if rng.random() < 0.65:
        return rng.randrange(size) if size else 0
    return rng.choice((-1, -2, -size - 1, -2 * size, size, size + 1, 2 * size + 3, -1000, 1000))


def _index_array(value: Any) -> np.ndarray:
    return np.array(value, np.int32)


def _slice(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    sizes = tuple(rng.choice((size, rng.randint(1, size))) for size in x.shape)
    starts = _index_array([_index(rng, size) for size in x.shape])
    return Step(
        f"dynamic_slice {starts} of {sizes}",
        (starts,),
        lambda x, operands: lax.dynamic_slice(x, list(operands[0]), sizes, allow_negative_indices=False),
        lambda x, operands: x[_clamped(x.shape, sizes, operands[0])],
        traced=rng.random() < 0.8,
    )


def _update_slice(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    sizes = tuple(rng.choice((size, rng.randint(1, size))) for size in x.shape)
    starts = _index_array([_index(rng, size) for size in x.shape])

    def in_numpy(x: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
        result = x.copy()
        result[_clamped(x.shape, sizes, operands[1])] = operands[0]
        return result

    return Step(
        f"dynamic_update_slice {starts} of {sizes}",
        (_integers(rng, sizes, x.dtype), starts),
        lambda x, operands: lax.dynamic_update_slice(x, operands[0], list(operands[1]), allow_negative_indices=False),
        in_numpy,
        traced=rng.random() < 0.8,
    )


def _clamped(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[int]) -> tuple[slice, ...]:
    firsts = [int(np.clip(start, 0, n - size)) for start, n, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _windows(rng: Random, x: np.ndarray) -> Step | None:
    """Take a slice of each row at a start of its own."""
    if x.ndim != 2 or not x.size:
        return None
    size = rng.randint(1, x.shape[1])
    starts = _index_array([_index(rng, x.shape[1]) for _ in range(x.shape[0])])

    def one(row: Any, start: Any) -> Any:
        return lax.dynamic_slice(row, (start,), (size,), allow_negative_indices=False)

    return Step(
        f"a slice of {size} of each row at {starts}",
        (starts,),
        lambda x, operands: shardwise.vmap(one)(x, jnp.asarray(operands[0])),
        lambda x, operands: np.stack(
            [row[_clamped(row.shape, (size,), [start])] for row, start in zip(x, operands[0], strict=True)]
        ),
        traced=rng.random() < 0.8,
    )


def _advanced_index(rng: Random, x: np.ndarray) -> tuple[tuple[int, ...], list[np.ndarray], str]:
    """Return the indexed dims, an index array for each, of equal shapes, and their text."""
    dims = tuple(sorted(rng.sample(range(x.ndim), rng.choice((1, 1, min(2, x.ndim))))))
    shape = rng.choice(((), (), (1,), (2,), (3,), (1, 2)))
    indices = [
        _index_array([_index(rng, x.shape[dim]) for _ in range(int(np.prod(shape)))]).reshape(shape) for dim in dims
    ]
    return dims, indices, ", ".join(f"{index.tolist()} along {dim}" for dim, index in zip(dims, indices, strict=True))


def _key(dims: Sequence[int], indices: Sequence[Any], ndim: int) -> tuple[Any, ...]:
    at = dict(zip(dims, indices, strict=True))
    return tuple(at.get(dim, slice(None)) for dim in range(ndim))


def _numpy_indices(
    shape: Sequence[int], dims: Sequence[int], indices: Sequence[np.ndarray], mode: str
) -> list[np.ndarray]:
    """Return indices into an array with one more element along each of `dims`, which stands for "out of bounds"."""
    result = []
    for dim, index in zip(dims, indices, strict=True):
        size = shape[dim]
        wrapped = np.where(index < 0, index.astype(np.int64) + size, index)
        if mode == "clip":
            result.append(np.clip(wrapped, 0, size - 1))
        else:
            result.append(np.where((wrapped >= 0) & (wrapped < size), wrapped, size))
    return result


def _get(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    dims, indices, text = _advanced_index(rng, x)
    mode = rng.choice(("clip", "fill"))

    def in_numpy(x: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
        padded = np.pad(x, [(0, int(dim in dims)) for dim in range(x.ndim)], constant_values=FILL)
        return np.asarray(padded[_key(dims, _numpy_indices(x.shape, dims, operands, mode), x.ndim)])

    return Step(
        f"get at {text}, {mode}",
        tuple(indices),
        lambda x, operands: x.at[_key(dims, [jnp.asarray(index) for index in operands], x.ndim)].get(
            mode=mode, **({"fill_value": FILL} if mode == "fill" else {})
        ),
        in_numpy,
        traced=rng.random() < 0.8,
    )


def _update(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    dims, indices, text = _advanced_index(rng, x)
    mode, method = rng.choice(("drop", "clip")), rng.choice(("set", *COMBINE))
    targets = np.stack([np.ravel(i) for i in _numpy_indices(x.shape, dims, indices, mode)], axis=1)
    if method == "set" and len(np.unique(targets, axis=0)) < len(targets):
        method = "add"  # which of several updates wins is not defined
    new = _integers(rng, x[_key(dims, [np.zeros_like(index) for index in indices], x.ndim)].shape, x.dtype)

    def in_numpy(x: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
        new, *indices = operands
        padded = np.pad(x, [(0, int(dim in dims)) for dim in range(x.ndim)])
        key = _key(dims, _numpy_indices(x.shape, dims, indices, mode), x.ndim)
        if method == "set":
            padded[key] = new
        else:
            COMBINE[method].at(padded, key, new)
        return padded[tuple(slice(0, size) for size in x.shape)]

    return Step(
        f"{method} at {text}, {mode}",
        (new, *indices),
        lambda x, operands: getattr(x.at[_key(dims, [jnp.asarray(index) for index in operands[1:]], x.ndim)], method)(
            operands[0], mode=mode
        ),
        in_numpy,
        traced=rng.random() < 0.8,
    )


def _take_along(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    dim = rng.randrange(x.ndim)
    shape = [*x.shape[:dim], rng.randint(1, 3), *x.shape[dim + 1 :]]
    indices = _index_array([rng.randrange(-x.shape[dim], x.shape[dim]) for _ in range(int(np.prod(shape)))])
    return Step(
        f"take_along_axis of shape {shape} along {dim}",
        (indices.reshape(shape),),
        lambda x, operands: jnp.take_along_axis(x, jnp.asarray(operands[0]), dim),
        lambda x, operands: np.take_along_axis(x, operands[0], dim),
        traced=rng.random() < 0.8,
    )


def _roll(rng: Random, x: np.ndarray) -> Step | None:
    if not x.ndim or not x.size:
        return None
    dim, shift = rng.randrange(x.ndim), _index_array(rng.randint(-20, 20))
    return Step(
        f"roll by {shift} along {dim}",
        (shift,),
        lambda x, operands: jnp.roll(x, operands[0], dim),
        lambda x, operands: np.roll(x, int(operands[0]), dim),
    )


def _static(rng: Random, x: np.ndarray) -> Step | None:
    """Apply an op without indices, through which XLA may move slices."""
    if not x.ndim or not x.size:
        return None
    size = x.shape[0]
    first = rng.randrange(size)
    text, function = rng.choice(
        [
            ("transpose", lambda np, x: np.transpose(x)),
            ("flatten", lambda np, x: np.reshape(x, (-1,))),
            ("flip", lambda np, x: np.flip(x, 0)),
            ("x[first:]", lambda np, x: x[first:]),
            ("x[::2]", lambda np, x: x[::2]),
            ("pad", lambda np, x: np.pad(x, 1)),
            ("concatenate", lambda np, x: np.concatenate([x, x[:1]])),
            ("new dim", lambda np, x: np.broadcast_to(x[None], (2, *x.shape)) if x.ndim < 3 else x),
            ("minus", lambda np, x: -x),
        ]
    )
    return Step(f"{text} (first={first})", (), lambda x, _: function(jnp, x), lambda x, _: np.asarray(function(np, x)))


def _constrain(rng: Random, x: np.ndarray, mesh: dict[str, int]) -> Step:
    spec = random_spec(rng, x.shape, mesh)

    def on_devices(x: Any, _: Sequence[Any]) -> Any:
        devices = device_mesh(tuple(mesh.values()), tuple(mesh))
        return lax.with_sharding_constraint(x, NamedSharding(devices, partition_spec(spec)))

    return Step(f"constrain to {spec_text(spec)}", (), on_devices, lambda x, _: x)


KINDS: tuple[Any, ...] = (
    _slice, _slice, _slice, _update_slice, _update_slice, _get, _get, _get, _update, _update, _update, _windows,
    _take_along, _roll, _static, _static, _constrain, _constrain,
)  # fmt: skip
