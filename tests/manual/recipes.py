"""Random functions of pieces, each both as shard_map takes it and as a loop over devices: meshes, specs, dtypes.

A recipe is a list of steps over a growing list of values. Each step knows how to do itself with the package (on one
device's piece) and with numpy (on the pieces of all devices), and over which axes its result may differ between them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.sharding import PartitionSpec as P
from tests.manual.devices import Array, Devices, Pieces, Spec, axes_of, cutting, is_float

MESHES = ({"x": 8}, {"y": 4, "x": 2}, {"c": 2, "a": 2, "b": 2})
DTYPES = (np.float32, np.float32, ml_dtypes.bfloat16, np.int32, np.bool_)
LARGEST = 1 << 12  # elements of a piece


@dataclass(frozen=True)
class Known:
    """What is known of a value before it is computed. `varies`: as types have it; `differs`: where it really can."""

    shape: tuple[int, ...]
    dtype: Any
    varies: frozenset[str]
    differs: frozenset[str]
    exact: bool  # to the bit: integers, and floats that only moved


@dataclass(frozen=True)
class Step:
    text: str
    ours: Callable[[list[Any]], Any]
    numpy: Callable[[Devices, list[Pieces]], Pieces]
    known: Known


@dataclass
class Recipe:
    """A function of pieces over the axes `manual` of a mesh; the others, if any, are planned."""

    seed: int
    mesh: dict[str, int]
    manual: tuple[str, ...]
    check: bool
    inputs: list[tuple[Known, Spec]]
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[int, Spec]] = field(default_factory=list)

    @property
    def values(self) -> list[Known]:
        return [*(known for known, _ in self.inputs), *(step.known for step in self.steps)]

    @cached_property
    def devices(self) -> Devices:
        return Devices({axis: self.mesh[axis] for axis in self.manual})

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, mesh {self.mesh}, manual {self.manual}, check_vma={self.check}"]
        lines += [f"  {n}: {k.dtype.__name__}{k.shape} cut as {spec}" for n, (k, spec) in enumerate(self.inputs)]
        lines += [f"  {len(self.inputs) + n}: {step.text} -> {step.known.shape}" for n, step in enumerate(self.steps)]
        return "\n".join([*lines, f"  out {self.outputs}"])

    def function(self, mesh: Any) -> Callable[..., Any]:
        """Of whole arrays: the package's."""

        def body(*pieces: Any) -> tuple[Any, ...]:
            env = list(pieces)
            for step in self.steps:
                env.append(step.ours(env))
            return tuple(env[number] for number, _ in self.outputs)

        return sw.shard_map(
            body,
            mesh=mesh,
            in_specs=tuple(P(*spec) for _, spec in self.inputs),
            out_specs=tuple(P(*spec) for _, spec in self.outputs),
            axis_names=set(self.manual),
            check_vma=self.check,
        )

    def looped(self, args: Sequence[Array]) -> list[Array]:
        """The same, device by device in numpy."""
        env = [self.devices.cut(arg, spec) for arg, (_, spec) in zip(args, self.inputs, strict=True)]
        for step in self.steps:
            env.append(step.numpy(self.devices, env))
        return [self.devices.join(env[number], spec) for number, spec in self.outputs]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of whole arguments."""
        return [
            tuple(size * self.devices.count(axes_of(entry)) for size, entry in zip(known.shape, spec, strict=True))
            for known, spec in self.inputs
        ]

    @cached_property
    def args(self) -> list[Array]:
        rng = np.random.default_rng(self.seed)
        found = []
        for (known, _), shape in zip(self.inputs, self.shapes, strict=True):
            drawn = rng.normal(size=shape) if is_float(known.dtype) else rng.integers(-40, 40, shape)
            found.append((drawn > 0 if known.dtype is np.bool_ else drawn).astype(known.dtype))
        return found

    @property
    def exact(self) -> list[bool]:
        return [self.values[number].exact for number, _ in self.outputs]

    @property
    def abstract(self) -> AbstractMesh:
        return AbstractMesh(tuple(self.mesh.values()), tuple(self.mesh))


def random_recipe(seed: int, dtypes: Sequence[Any] = DTYPES) -> Recipe:
    rng = Random(seed)
    mesh = rng.choice(MESHES)
    manual = tuple(mesh)
    if len(mesh) > 1 and rng.random() < 0.35:
        some = rng.sample(list(mesh), rng.randint(1, len(mesh) - 1))
        manual = tuple(axis for axis in mesh if axis in some)
    check = rng.random() < 0.7
    inputs = []
    for _ in range(rng.randint(1, 3)):
        dtype = rng.choice(dtypes)
        shape = tuple(rng.choice((1, 2, 3, 4, 8)) for _ in range(rng.randint(0, 3)))
        spec = random_spec(rng, shape, manual)
        cut = frozenset(cutting(spec))
        inputs.append((Known(shape, dtype, cut, cut, True), spec))
    recipe = Recipe(seed, mesh, manual, check, inputs)
    wanted = rng.randint(2, 6)
    while len(recipe.steps) < wanted:
        number = rng.randrange(len(recipe.values))
        step = rng.choice(STEPS)(rng, recipe, number, recipe.values[number])
        if step is not None and np.prod(step.known.shape) <= LARGEST:
            recipe.steps.append(step)
    last = len(recipe.values) - 1
    for number in {last, rng.randrange(last + 1)}:
        _leave(rng, recipe, number)
    return recipe


def random_spec(rng: Random, shape: Sequence[int], axes: Sequence[str], needed: frozenset[str] = frozenset()) -> Spec:
    """Axes over dims: those that are needed, and some others."""
    entries: list[list[str]] = [[] for _ in shape]
    for axis in rng.sample(list(axes), len(axes)):
        if shape and (axis in needed or rng.random() < 0.6):
            rng.choice(entries).append(axis)
    return tuple(None if not e else e[0] if len(e) == 1 and rng.random() < 0.8 else tuple(e) for e in entries)


def _leave(rng: Random, recipe: Recipe, number: int) -> None:
    """One more result: what no dim can be cut for is added up first."""
    known = recipe.values[number]
    if not known.shape and known.differs:
        recipe.steps.append(_reduction("sum", number, known, tuple(sorted(known.differs)), None))
        number = len(recipe.values) - 1
        known = recipe.values[number]
    recipe.outputs.append((number, random_spec(rng, known.shape, recipe.manual, known.differs)))


# Steps. Each takes the value with this number, and is None where that does not fit.


def _some_axes(rng: Random, recipe: Recipe) -> tuple[str, ...]:
    """One or several axes, in any order."""
    return tuple(rng.sample(recipe.manual, rng.randint(1, len(recipe.manual))))


def _name(rng: Random, axes: tuple[str, ...]) -> Any:
    return axes[0] if len(axes) == 1 and rng.random() < 0.7 else axes


def _random_groups(rng: Random, count: int) -> list[list[int]] | None:
    """Groups of members, now and then."""
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    if rng.random() < 0.75:
        return None
    size, members = rng.choice(sizes), rng.sample(range(count), count)
    return [members[start : start + size] for start in range(0, count, size)]


def _reduction(how: str, number: int, known: Known, axes: tuple[str, ...], groups: Any, name: Any = None) -> Step:
    function = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[how]
    dtype = np.int32 if known.dtype is np.bool_ and how == "sum" else known.dtype
    varies = known.varies | set(axes) if groups else known.varies - set(axes)
    differs = known.differs | set(axes) if groups else known.differs - set(axes)
    exact = known.exact and (how != "sum" or not is_float(dtype))
    return Step(
        f"p{how}({number}, {axes}, {groups})",
        lambda env: function(env[number], name or axes, axis_index_groups=groups),
        lambda devices, env: devices.reduced(how, env[number], axes, groups),
        Known(known.shape, dtype, varies, differs, exact),
    )


def reduction(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes = _some_axes(rng, recipe)
    how = rng.choice(("sum", "sum", "max", "min"))
    if known.dtype is np.bool_:
        how = "sum"
    return _reduction(how, number, known, axes, _random_groups(rng, recipe.devices.count(axes)), _name(rng, axes))


def mean(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes = _some_axes(rng, recipe)
    if not is_float(known.dtype):
        return None
    count = recipe.devices.count(axes)
    return Step(
        f"pmean({number}, {axes})",
        lambda env: lax.pmean(env[number], axes),
        lambda devices, env: [
            (x.astype(np.float64) / count).astype(x.dtype) for x in devices.reduced("sum", env[number], axes)
        ],
        Known(known.shape, known.dtype, known.varies - set(axes), known.differs - set(axes), False),
    )


def gather(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    if tiled and not known.shape:
        return None
    dim = rng.randrange(len(known.shape) + (not tiled))
    count = recipe.devices.count(axes)
    groups = _random_groups(rng, count)
    to = "varying" if groups or rng.random() < 0.7 else "invarying"
    count = len(groups[0]) if groups else count
    shape = list(known.shape)
    if tiled:
        shape[dim] *= count
    else:
        shape.insert(dim, count)
    name = _name(rng, axes)
    varies = known.varies | set(axes) if to == "varying" else known.varies - set(axes)
    differs = known.differs | set(axes) if groups else known.differs - set(axes)
    return Step(
        f"all_gather({number}, {axes}, axis={dim}, tiled={tiled}, to={to}, groups={groups})",
        lambda env: lax.all_gather(env[number], name, axis=dim, tiled=tiled, to=to, axis_index_groups=groups),
        lambda devices, env: devices.all_gather(env[number], axes, dim, tiled, groups),
        Known(tuple(shape), known.dtype, varies, differs, known.exact),
    )


def scatter(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    groups = _random_groups(rng, recipe.devices.count(axes))
    count = len(groups[0]) if groups else recipe.devices.count(axes)
    dims = [d for d, size in enumerate(known.shape) if (size % count == 0 if tiled else size == count)]
    if not dims or known.dtype is np.bool_:
        return None
    dim = rng.choice(dims)
    shape = list(known.shape)
    if tiled:
        shape[dim] //= count
    else:
        del shape[dim]
    name = _name(rng, axes)
    return Step(
        f"psum_scatter({number}, {axes}, {dim}, tiled={tiled}, groups={groups})",
        lambda env: lax.psum_scatter(env[number], name, scatter_dimension=dim, tiled=tiled, axis_index_groups=groups),
        lambda devices, env: devices.psum_scatter(env[number], axes, dim, tiled, groups),
        _moved(known, axes, shape, known.exact and not is_float(known.dtype)),
    )


def exchange(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    groups = _random_groups(rng, recipe.devices.count(axes))
    count = len(groups[0]) if groups else recipe.devices.count(axes)
    dims = [d for d, size in enumerate(known.shape) if (size % count == 0 if tiled else size == count)]
    if not dims:
        return None
    split, stack = rng.choice(dims), rng.randrange(len(known.shape))
    shape = list(known.shape)
    if tiled:
        shape[split] //= count
        shape[stack] *= count
    else:
        del shape[split]
        shape.insert(stack, count)
    name = _name(rng, axes)
    return Step(
        f"all_to_all({number}, {axes}, {split}, {stack}, tiled={tiled}, groups={groups})",
        lambda env: lax.all_to_all(env[number], name, split, stack, tiled=tiled, axis_index_groups=groups),
        lambda devices, env: devices.all_to_all(env[number], axes, split, stack, tiled, groups),
        _moved(known, axes, shape, known.exact),
    )


def permute(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes = _some_axes(rng, recipe)
    count = recipe.devices.count(axes)
    senders, receivers = rng.sample(range(count), count), rng.sample(range(count), count)
    pairs = list(zip(senders, receivers, strict=True))[: rng.choice((count, rng.randint(0, count)))]
    name = _name(rng, axes)
    return Step(
        f"ppermute({number}, {axes}, {pairs})",
        lambda env: lax.ppermute(env[number], name, pairs),
        lambda devices, env: devices.ppermute(env[number], axes, pairs),
        _moved(known, axes, known.shape, known.exact),
    )


def index(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes = _some_axes(rng, recipe)
    if known.dtype is np.bool_:
        return None
    return Step(
        f"{number} + axis_index({axes})",
        lambda env: env[number] + lax.axis_index(axes).astype(env[number].dtype),
        lambda devices, env: [
            x + np.asarray(i).astype(x.dtype) for x, i in zip(env[number], devices.axis_index(axes), strict=True)
        ],
        _moved(known, axes, known.shape, known.exact and not is_float(known.dtype)),
    )


def vary(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    axes = _some_axes(rng, recipe)
    function = rng.choice((lambda x: lax.pcast(x, axes, to="varying"), lambda x: lax.pvary(x, axes)))
    return Step(
        f"pvary({number}, {axes})",
        lambda env: function(env[number]),
        lambda devices, env: env[number],
        Known(known.shape, known.dtype, known.varies | set(axes), known.differs | set(axes), known.exact),
    )


def _moved(known: Known, axes: Sequence[str], shape: Sequence[int], exact: bool) -> Known:
    return Known(tuple(shape), known.dtype, known.varies | set(axes), known.differs | set(axes), exact)


def _local(known: Known, shape: Sequence[int], text: str, number: int, ours: Any, numpy: Any, exact: bool) -> Step:
    """Each device for itself."""
    return Step(
        text,
        lambda env: ours(env[number]),
        lambda devices, env: [np.asarray(numpy(x)).astype(x.dtype) for x in env[number]],
        Known(tuple(shape), known.dtype, known.varies, known.differs, exact and known.exact),
    )


def scale(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    if known.dtype is np.bool_:
        return _local(known, known.shape, f"~{number}", number, lambda x: ~x, lambda x: ~x, True)
    factor = rng.choice((2, -1)) if known.dtype is np.int32 else rng.choice((0.5, -2.0))
    whole = known.dtype is np.int32
    return _local(
        known,
        known.shape,
        f"{number} * {factor}",
        number,
        lambda x: x * jnp.asarray(factor).astype(x.dtype),
        lambda x: x * np.asarray(factor).astype(x.dtype),
        whole,
    )


def curve(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    if known.dtype is not np.float32:  # of bfloat16, it would show the rounding of large numbers
        return None
    return _local(
        known,
        known.shape,
        f"sin({number})",
        number,
        jnp.sin,
        lambda x: np.sin(x.astype(np.float64)),
        False,
    )


def total(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    if not known.shape or known.dtype is np.bool_:
        return None
    dim = rng.randrange(len(known.shape))
    wide = np.float64 if is_float(known.dtype) else np.int32
    return _local(
        known,
        known.shape[:dim] + known.shape[dim + 1 :],
        f"{number}.sum({dim})",
        number,
        lambda x: x.sum(dim, dtype=x.dtype),
        lambda x: x.astype(wide).sum(dim, dtype=wide),
        not is_float(known.dtype),
    )


def flip(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    return _local(known, known.shape[::-1], f"{number}.T", number, lambda x: x.T, lambda x: x.T, True)


def repeat(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    """So that there are dims that divide."""
    if not known.shape:
        return None
    dim, often = rng.randrange(len(known.shape)), rng.choice((2, 4, 8))
    shape = list(known.shape)
    shape[dim] *= often
    return _local(
        known,
        shape,
        f"concatenate({often} of {number}, {dim})",
        number,
        lambda x: jnp.concatenate([x] * often, dim),
        lambda x: np.concatenate([x] * often, dim),
        True,
    )


def join(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    """With another value."""
    other = rng.randrange(len(recipe.values))
    beside = recipe.values[other]
    if beside.dtype is not known.dtype or known.dtype is np.bool_:
        return None
    wide = np.float64 if is_float(known.dtype) else np.int32
    return Step(
        f"{number} + sum({other})",
        lambda env: env[number] + env[other].sum(dtype=env[other].dtype),
        lambda devices, env: [
            (x.astype(wide) + y.astype(wide).sum(dtype=wide)).astype(x.dtype)
            for x, y in zip(env[number], env[other], strict=True)
        ],
        Known(
            known.shape,
            known.dtype,
            known.varies | beside.varies,
            known.differs | beside.differs,
            not is_float(known.dtype),
        ),
    )


def branch(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    """Devices go different ways."""
    axes = _some_axes(rng, recipe)
    if known.dtype is np.bool_:
        return None
    bound = rng.randrange(recipe.devices.count(axes))
    return Step(
        f"cond(axis_index({axes}) > {bound}, 2 * {number}, 1 - {number})",
        lambda env: lax.cond(lax.axis_index(axes) > bound, lambda x: 2 * x, lambda x: 1 - x, env[number]),
        lambda devices, env: [
            (2 * x if i > bound else 1 - x).astype(x.dtype)
            for x, i in zip(env[number], devices.axis_index(axes), strict=True)
        ],
        _moved(known, axes, known.shape, known.exact and not is_float(known.dtype)),
    )


def loop(rng: Random, recipe: Recipe, number: int, known: Known) -> Step | None:
    """Values travel around a ring, one device further every turn, and something is added there."""
    axes = _some_axes(rng, recipe)
    if known.dtype is np.bool_:
        return None
    count, times = recipe.devices.count(axes), rng.randint(1, 3)
    ring = [(k, (k + 1) % count) for k in range(count)]

    def turn(carry: Any, _: Any) -> tuple[Any, None]:
        return lax.ppermute(carry, axes, ring) + lax.axis_index(axes).astype(carry.dtype), None

    def looped(devices: Devices, env: list[Pieces]) -> Pieces:
        carry = env[number]
        for _ in range(times):
            sent = devices.ppermute(carry, axes, ring)
            carry = [x + np.asarray(i).astype(x.dtype) for x, i in zip(sent, devices.axis_index(axes), strict=True)]
        return carry

    return Step(
        f"scan of {times} turns of a ring along {axes} of {number}",
        lambda env: lax.scan(turn, env[number], None, length=times)[0],
        looped,
        _moved(known, axes, known.shape, known.exact and not is_float(known.dtype)),
    )


STEPS = (
    *(reduction, reduction, mean, gather, gather, scatter, scatter, exchange, exchange, permute, permute, index, vary),
    *(scale, curve, total, flip, repeat, repeat, join, branch, loop),
)
