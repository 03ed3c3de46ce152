"""Random per-device functions, each as a function for shard_map and as a reference that loops over devices in numpy.

A recipe is a list of steps, each of which appends a value to a list. A step is implemented twice: with the package, on
one device's shard, and in numpy, on the shards of all devices. It also says over which axes its result may differ.
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
from tests.manual.devices import Array, Devices, Shards, Spec, axes_in, axes_of, is_float

MESHES = ({"x": 8}, {"y": 4, "x": 2}, {"c": 2, "a": 2, "b": 2})
DTYPES = (np.float32, np.float32, ml_dtypes.bfloat16, np.int32, np.bool_)
LARGEST = 1 << 12  # elements of a shard


@dataclass(frozen=True)
class Facts:
    """The type of a value. `varying`: the axes in its type (vma); `may_differ`: those along which shards may differ."""

    shape: tuple[int, ...]
    dtype: Any
    varying: frozenset[str]
    may_differ: frozenset[str]
    exact: bool  # results must be equal bit by bit: integers, and floats that are only copied


@dataclass(frozen=True)
class Step:
    text: str
    ours: Callable[[list[Any]], Any]
    numpy: Callable[[Devices, list[Shards]], Shards]
    facts: Facts


@dataclass
class Recipe:
    """A function of shards along the axes `manual` of a mesh; the other axes are automatic."""

    seed: int
    mesh: dict[str, int]
    manual: tuple[str, ...]
    check: bool
    inputs: list[tuple[Facts, Spec]]
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[int, Spec]] = field(default_factory=list)

    @property
    def values(self) -> list[Facts]:
        return [*(facts for facts, _ in self.inputs), *(step.facts for step in self.steps)]

    @cached_property
    def devices(self) -> Devices:
        return Devices({axis: self.mesh[axis] for axis in self.manual})

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, mesh {self.mesh}, manual {self.manual}, check_vma={self.check}"]
        lines += [f"  {n}: {k.dtype.__name__}{k.shape} sharded as {spec}" for n, (k, spec) in enumerate(self.inputs)]
        lines += [f"  {len(self.inputs) + n}: {step.text} -> {step.facts.shape}" for n, step in enumerate(self.steps)]
        return "\n".join([*lines, f"  out {self.outputs}"])

    def function(self, mesh: Any) -> Callable[..., Any]:
        """Return the function of global arrays, by shard_map."""

        def body(*shards: Any) -> tuple[Any, ...]:
            env = list(shards)
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

    def reference(self, args: Sequence[Array]) -> list[Array]:
        """Compute the same in numpy, device by device."""
        env = [self.devices.shard(arg, spec) for arg, (_, spec) in zip(args, self.inputs, strict=True)]
        for step in self.steps:
            env.append(step.numpy(self.devices, env))
        return [self.devices.unshard(env[number], spec) for number, spec in self.outputs]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The global shapes of the arguments."""
        return [
            tuple(size * self.devices.count(axes_of(entry)) for size, entry in zip(facts.shape, spec, strict=True))
            for facts, spec in self.inputs
        ]

    @cached_property
    def args(self) -> list[Array]:
        rng = np.random.default_rng(self.seed)
        args = []
        for (facts, _), shape in zip(self.inputs, self.shapes, strict=True):
            samples = rng.normal(size=shape) if is_float(facts.dtype) else rng.integers(-40, 40, shape)
            args.append((samples > 0 if facts.dtype is np.bool_ else samples).astype(facts.dtype))
        return args

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
        axes_used = frozenset(axes_in(spec))
        inputs.append((Facts(shape, dtype, axes_used, axes_used, True), spec))
    recipe = Recipe(seed, mesh, manual, check, inputs)
    step_count = rng.randint(2, 6)
    while len(recipe.steps) < step_count:
        number = rng.randrange(len(recipe.values))
        step = rng.choice(STEPS)(rng, recipe, number, recipe.values[number])
        if step is not None and np.prod(step.facts.shape) <= LARGEST:
            recipe.steps.append(step)
    last = len(recipe.values) - 1
    for number in {last, rng.randrange(last + 1)}:
        _add_output(rng, recipe, number)
    return recipe


def random_spec(rng: Random, shape: Sequence[int], axes: Sequence[str], needed: frozenset[str] = frozenset()) -> Spec:
    """Assign axes to dims at random: all of `needed`, and some others."""
    entries: list[list[str]] = [[] for _ in shape]
    for axis in rng.sample(list(axes), len(axes)):
        if shape and (axis in needed or rng.random() < 0.6):
            rng.choice(entries).append(axis)
    return tuple(None if not e else e[0] if len(e) == 1 and rng.random() < 0.8 else tuple(e) for e in entries)


def _add_output(rng: Random, recipe: Recipe, number: int) -> None:
    """Add a result. A varying scalar has no dim to be sharded along: it is summed first."""
    facts = recipe.values[number]
    if not facts.shape and facts.may_differ:
        recipe.steps.append(_reduction("sum", number, facts, tuple(sorted(facts.may_differ)), None))
        number = len(recipe.values) - 1
        facts = recipe.values[number]
    recipe.outputs.append((number, random_spec(rng, facts.shape, recipe.manual, facts.may_differ)))


# Steps. Each applies to value `number`, and returns None if it does not accept the type of that value.


def _some_axes(rng: Random, recipe: Recipe) -> tuple[str, ...]:
    """Return one or more axes in random order."""
    return tuple(rng.sample(recipe.manual, rng.randint(1, len(recipe.manual))))


def _name(rng: Random, axes: tuple[str, ...]) -> Any:
    return axes[0] if len(axes) == 1 and rng.random() < 0.7 else axes


def _random_groups(rng: Random, count: int) -> list[list[int]] | None:
    """Return random axis_index_groups in a quarter of the calls, and None in the others."""
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    if rng.random() < 0.75:
        return None
    size, members = rng.choice(sizes), rng.sample(range(count), count)
    return [members[start : start + size] for start in range(0, count, size)]


def _reduction(kind: str, number: int, facts: Facts, axes: tuple[str, ...], groups: Any, name: Any = None) -> Step:
    function = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[kind]
    dtype = np.int32 if facts.dtype is np.bool_ and kind == "sum" else facts.dtype
    varying = facts.varying | set(axes) if groups else facts.varying - set(axes)
    may_differ = facts.may_differ | set(axes) if groups else facts.may_differ - set(axes)
    exact = facts.exact and (kind != "sum" or not is_float(dtype))
    return Step(
        f"p{kind}({number}, {axes}, {groups})",
        lambda env: function(env[number], name or axes, axis_index_groups=groups),
        lambda devices, env: devices.reduce(kind, env[number], axes, groups),
        Facts(facts.shape, dtype, varying, may_differ, exact),
    )


def reduction(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes = _some_axes(rng, recipe)
    kind = rng.choice(("sum", "sum", "max", "min"))
    if facts.dtype is np.bool_:
        kind = "sum"
    return _reduction(kind, number, facts, axes, _random_groups(rng, recipe.devices.count(axes)), _name(rng, axes))


def mean(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes = _some_axes(rng, recipe)
    if not is_float(facts.dtype):
        return None
    count = recipe.devices.count(axes)
    return Step(
        f"pmean({number}, {axes})",
        lambda env: lax.pmean(env[number], axes),
        lambda devices, env: [
            (x.astype(np.float64) / count).astype(x.dtype) for x in devices.reduce("sum", env[number], axes)
        ],
        Facts(facts.shape, facts.dtype, facts.varying - set(axes), facts.may_differ - set(axes), False),
    )


def gather(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    if tiled and not facts.shape:
        return None
    dim = rng.randrange(len(facts.shape) + (not tiled))
    count = recipe.devices.count(axes)
    groups = _random_groups(rng, count)
    to = "varying" if groups or rng.random() < 0.7 else "invarying"
    count = len(groups[0]) if groups else count
    shape = list(facts.shape)
    if tiled:
        shape[dim] *= count
    else:
        shape.insert(dim, count)
    name = _name(rng, axes)
    varying = facts.varying | set(axes) if to == "varying" else facts.varying - set(axes)
    may_differ = facts.may_differ | set(axes) if groups else facts.may_differ - set(axes)
    return Step(
        f"all_gather({number}, {axes}, axis={dim}, tiled={tiled}, to={to}, groups={groups})",
        lambda env: lax.all_gather(env[number], name, axis=dim, tiled=tiled, to=to, axis_index_groups=groups),
        lambda devices, env: devices.all_gather(env[number], axes, dim, tiled, groups),
        Facts(tuple(shape), facts.dtype, varying, may_differ, facts.exact),
    )


def scatter(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    groups = _random_groups(rng, recipe.devices.count(axes))
    count = len(groups[0]) if groups else recipe.devices.count(axes)
    dims = [d for d, size in enumerate(facts.shape) if (size % count == 0 if tiled else size == count)]
    if not dims or facts.dtype is np.bool_:
        return None
    dim = rng.choice(dims)
    shape = list(facts.shape)
    if tiled:
        shape[dim] //= count
    else:
        del shape[dim]
    name = _name(rng, axes)
    return Step(
        f"psum_scatter({number}, {axes}, {dim}, tiled={tiled}, groups={groups})",
        lambda env: lax.psum_scatter(env[number], name, scatter_dimension=dim, tiled=tiled, axis_index_groups=groups),
        lambda devices, env: devices.psum_scatter(env[number], axes, dim, tiled, groups),
        _varying(facts, axes, shape, facts.exact and not is_float(facts.dtype)),
    )


def all_to_all(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes, tiled = _some_axes(rng, recipe), rng.random() < 0.5
    groups = _random_groups(rng, recipe.devices.count(axes))
    count = len(groups[0]) if groups else recipe.devices.count(axes)
    dims = [d for d, size in enumerate(facts.shape) if (size % count == 0 if tiled else size == count)]
    if not dims:
        return None
    split, stack = rng.choice(dims), rng.randrange(len(facts.shape))
    shape = list(facts.shape)
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
        _varying(facts, axes, shape, facts.exact),
    )


def permute(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes = _some_axes(rng, recipe)
    count = recipe.devices.count(axes)
    senders, receivers = rng.sample(range(count), count), rng.sample(range(count), count)
    pairs = list(zip(senders, receivers, strict=True))[: rng.choice((count, rng.randint(0, count)))]
    name = _name(rng, axes)
    return Step(
        f"ppermute({number}, {axes}, {pairs})",
        lambda env: lax.ppermute(env[number], name, pairs),
        lambda devices, env: devices.ppermute(env[number], axes, pairs),
        _varying(facts, axes, facts.shape, facts.exact),
    )


def index(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes = _some_axes(rng, recipe)
    if facts.dtype is np.bool_:
        return None
    return Step(
        f"{number} + axis_index({axes})",
        lambda env: env[number] + lax.axis_index(axes).astype(env[number].dtype),
        lambda devices, env: [
            x + np.asarray(i).astype(x.dtype) for x, i in zip(env[number], devices.axis_index(axes), strict=True)
        ],
        _varying(facts, axes, facts.shape, facts.exact and not is_float(facts.dtype)),
    )


def pvary(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    axes = _some_axes(rng, recipe)
    function = rng.choice((lambda x: lax.pcast(x, axes, to="varying"), lambda x: lax.pvary(x, axes)))
    return Step(
        f"pvary({number}, {axes})",
        lambda env: function(env[number]),
        lambda devices, env: env[number],
        Facts(facts.shape, facts.dtype, facts.varying | set(axes), facts.may_differ | set(axes), facts.exact),
    )


def _varying(facts: Facts, axes: Sequence[str], shape: Sequence[int], exact: bool) -> Facts:
    return Facts(tuple(shape), facts.dtype, facts.varying | set(axes), facts.may_differ | set(axes), exact)


def _per_device(facts: Facts, shape: Sequence[int], text: str, number: int, ours: Any, numpy: Any, exact: bool) -> Step:
    """Return a step without communication."""
    return Step(
        text,
        lambda env: ours(env[number]),
        lambda devices, env: [np.asarray(numpy(x)).astype(x.dtype) for x in env[number]],
        Facts(tuple(shape), facts.dtype, facts.varying, facts.may_differ, exact and facts.exact),
    )


def scale(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    if facts.dtype is np.bool_:
        return _per_device(facts, facts.shape, f"~{number}", number, lambda x: ~x, lambda x: ~x, True)
    factor = rng.choice((2, -1)) if facts.dtype is np.int32 else rng.choice((0.5, -2.0))
    is_integer = facts.dtype is np.int32
    return _per_device(
        facts,
        facts.shape,
        f"{number} * {factor}",
        number,
        lambda x: x * jnp.asarray(factor).astype(x.dtype),
        lambda x: x * np.asarray(factor).astype(x.dtype),
        is_integer,
    )


def sine(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    if facts.dtype is not np.float32:  # the sine of a large bfloat16 amplifies its rounding error
        return None
    return _per_device(
        facts,
        facts.shape,
        f"sin({number})",
        number,
        jnp.sin,
        lambda x: np.sin(x.astype(np.float64)),
        False,
    )


def total(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    if not facts.shape or facts.dtype is np.bool_:
        return None
    dim = rng.randrange(len(facts.shape))
    wide = np.float64 if is_float(facts.dtype) else np.int32
    return _per_device(
        facts,
        facts.shape[:dim] + facts.shape[dim + 1 :],
        f"{number}.sum({dim})",
        number,
        lambda x: x.sum(dim, dtype=x.dtype),
        lambda x: x.astype(wide).sum(dim, dtype=wide),
        not is_float(facts.dtype),
    )


def transpose(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    return _per_device(facts, facts.shape[::-1], f"{number}.T", number, lambda x: x.T, lambda x: x.T, True)


def tile(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    """Make a dim larger, so that later steps can divide it."""
    if not facts.shape:
        return None
    dim, copies = rng.randrange(len(facts.shape)), rng.choice((2, 4, 8))
    shape = list(facts.shape)
    shape[dim] *= copies
    return _per_device(
        facts,
        shape,
        f"concatenate({copies} of {number}, {dim})",
        number,
        lambda x: jnp.concatenate([x] * copies, dim),
        lambda x: np.concatenate([x] * copies, dim),
        True,
    )


def add_sum(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    """Add the sum of another value."""
    other = rng.randrange(len(recipe.values))
    other_facts = recipe.values[other]
    if other_facts.dtype is not facts.dtype or facts.dtype is np.bool_:
        return None
    wide = np.float64 if is_float(facts.dtype) else np.int32
    return Step(
        f"{number} + sum({other})",
        lambda env: env[number] + env[other].sum(dtype=env[other].dtype),
        lambda devices, env: [
            (x.astype(wide) + y.astype(wide).sum(dtype=wide)).astype(x.dtype)
            for x, y in zip(env[number], env[other], strict=True)
        ],
        Facts(
            facts.shape,
            facts.dtype,
            facts.varying | other_facts.varying,
            facts.may_differ | other_facts.may_differ,
            not is_float(facts.dtype),
        ),
    )


def branch(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    """Devices take different branches."""
    axes = _some_axes(rng, recipe)
    if facts.dtype is np.bool_:
        return None
    bound = rng.randrange(recipe.devices.count(axes))
    return Step(
        f"cond(axis_index({axes}) > {bound}, 2 * {number}, 1 - {number})",
        lambda env: lax.cond(lax.axis_index(axes) > bound, lambda x: 2 * x, lambda x: 1 - x, env[number]),
        lambda devices, env: [
            (2 * x if i > bound else 1 - x).astype(x.dtype)
            for x, i in zip(env[number], devices.axis_index(axes), strict=True)
        ],
        _varying(facts, axes, facts.shape, facts.exact and not is_float(facts.dtype)),
    )


def loop(rng: Random, recipe: Recipe, number: int, facts: Facts) -> Step | None:
    """Values travel around a ring, one device per iteration, and each device adds its index."""
    axes = _some_axes(rng, recipe)
    if facts.dtype is np.bool_:
        return None
    count, times = recipe.devices.count(axes), rng.randint(1, 3)
    ring = [(k, (k + 1) % count) for k in range(count)]

    def body(carry: Any, _: Any) -> tuple[Any, None]:
        return lax.ppermute(carry, axes, ring) + lax.axis_index(axes).astype(carry.dtype), None

    def reference(devices: Devices, env: list[Shards]) -> Shards:
        carry = env[number]
        for _ in range(times):
            sent = devices.ppermute(carry, axes, ring)
            carry = [x + np.asarray(i).astype(x.dtype) for x, i in zip(sent, devices.axis_index(axes), strict=True)]
        return carry

    return Step(
        f"scan of {times} steps around the ring {axes} of {number}",
        lambda env: lax.scan(body, env[number], None, length=times)[0],
        reference,
        _varying(facts, axes, facts.shape, facts.exact and not is_float(facts.dtype)),
    )


STEPS = (
    *(
        reduction,
        reduction,
        mean,
        gather,
        gather,
        scatter,
        scatter,
        all_to_all,
        all_to_all,
        permute,
        permute,
        index,
        pvary,
    ),
    *(scale, sine, total, transpose, tile, tile, add_sum, branch, loop),
)
