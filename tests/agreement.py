"""One table a family: every row is a call, and what it gives must agree with oracles that were computed another way.

    CASES = [Case("roll", (X, 2)), Case("roll", (X, 1), {"axis": 0}), …]

    @pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
    def test_like_jax(cases):
        values_like(jnp, jax.numpy, cases, jax)

Arrays among the arguments (of numpy, also inside lists and tuples) are given as arguments of the compiled function;
everything else is part of the program. All calls of a batch are one program: compiling is what such tests cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

import shardwise as sw
from shardwise.sharding import NamedSharding, PartitionSpec

try:
    import jax
except ImportError:  # the oracle of most tests, which need not be installed
    jax = None


@final
@dataclass(frozen=True)
class Case:
    """One call. `name` is looked up in the namespaces that are compared, through dots."""

    name: str
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6
    weak: bool = True  # whether weak types are compared: JAX's depend on how it composes some functions
    smooth: bool = True  # whether it has a gradient to compare, where arguments and results are floats

    def __str__(self) -> str:
        shown = [_shown(x) for x in self.args] + [f"{name}={_shown(x)}" for name, x in self.keywords.items()]
        return f"{self.name}({', '.join(shown)})"


def _shown(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else str(x)


def batches(cases: Sequence[Case], size: int = 24) -> list[list[Case]]:
    return [list(cases[start : start + size]) for start in range(0, len(cases), size)]


def batch_name(cases: Sequence[Case]) -> str:
    return f"{cases[0].name}-{cases[-1].name}"


def _found(namespace: Any, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace  # type: ignore[no-any-return]


@final
class _Opened:
    """A case's arguments with its arrays taken out, to be put back as tracers."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._args = self._open((case.args, case.keywords))

    def _open(self, tree: Any) -> Any:
        if isinstance(tree, np.ndarray):
            position = len(self.arrays)
            self.arrays.append(tree)
            return lambda arrays: arrays[position]
        if type(tree) in (list, tuple):
            items = [self._open(item) for item in tree]
            return lambda arrays: type(tree)(item(arrays) for item in items)
        if type(tree) is dict:
            values = {key: self._open(value) for key, value in tree.items()}
            return lambda arrays: {key: value(arrays) for key, value in values.items()}
        return lambda arrays: tree

    def call(self, namespace: Any, arrays: Sequence[Any]) -> Any:
        args, keywords = self._args(arrays)
        return _found(namespace, self.case.name)(*args, **keywords)


def _opened(cases: Sequence[Case]) -> list[_Opened]:
    return [_Opened(case) for case in cases]


def _all_of(namespace: Any, opened: Sequence[_Opened]) -> Callable[[Any], Any]:
    return lambda arrays: [one.call(namespace, mine) for one, mine in zip(opened, arrays, strict=True)]


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def equal(ours: Any, theirs: Any, case: Case, types: bool = True) -> None:
    """Values agree, to the case's tolerance; shapes, dtypes and weak types too."""
    mine, others = _leaves(ours), _leaves(theirs)
    assert len(mine) == len(others), f"{case}: {len(mine)} results, and {len(others)} there"
    for x, y in zip(mine, others, strict=True):
        got, wanted = np.asarray(x), np.asarray(y)
        assert got.shape == wanted.shape, f"{case}: {got.shape}, and {wanted.shape} there"
        if types:
            assert got.dtype == wanted.dtype, f"{case}: {got.dtype}, and {wanted.dtype} there"
            weak = getattr(x, "weak_type", False), getattr(y, "weak_type", False)
            # JAX has weak booleans, which promote like others.
            assert weak[0] == weak[1] or not case.weak or got.dtype == np.bool_, f"{case}: weak type {weak[0]}"
        narrow = got.dtype.itemsize < 4 and got.dtype.kind not in "iub"
        if got.dtype.kind in "iubSU" and wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(got, wanted, err_msg=str(case))
        else:
            wide = complex if np.iscomplexobj(wanted) else float
            np.testing.assert_allclose(
                got.astype(wide),
                wanted.astype(wide),
                rtol=max(case.rtol, 2e-2 if narrow else 0),
                atol=max(case.atol, 1e-2 if narrow else 0),
                err_msg=str(case),
            )


def values_like(ours: Any, theirs: Any, cases: Sequence[Case], peer: Any) -> None:
    """The same calls in two namespaces, each in one compiled program of its own package."""
    opened = _opened(cases)
    arrays = [one.arrays for one in opened]
    mine = sw.jit(_all_of(ours, opened))(arrays)
    others = peer.jit(_all_of(theirs, opened))(arrays)
    for case, x, y in zip(cases, mine, others, strict=True):
        equal(x, y, case)


def values_like_numpy(ours: Any, cases: Sequence[Case], numpy: Any = np) -> None:
    """The same calls on numpy: values and shapes; dtypes are wider there."""
    opened = _opened(cases)
    mine = sw.jit(_all_of(ours, opened))([one.arrays for one in opened])
    for case, x in zip(cases, mine, strict=True):
        with np.errstate(all="ignore"):
            equal(x, _found(numpy, case.name)(*case.args, **case.keywords), case, types=False)


def values_like_both(
    ours: Any, cases: Sequence[Case], more: Sequence[Case] = (), numpy: Any = np, theirs: str = "numpy"
) -> None:
    """The same calls on numpy, and those and more in JAX where that is installed: one program of ours for both."""
    opened = _opened([*cases, *more])
    arrays = [one.arrays for one in opened]
    mine = sw.jit(_all_of(ours, opened))(arrays)
    for case, x in zip(cases, mine, strict=False):
        with np.errstate(all="ignore"):
            equal(x, _found(numpy, case.name)(*case.args, **case.keywords), case, types=False)
    if jax is not None:
        others = jax.jit(_all_of(_found(jax, theirs), opened))(arrays)
        for one, x, y in zip(opened, mine, others, strict=True):
            equal(x, y, one.case)


def eagerly_like(ours: Any, theirs: Any, cases: Sequence[Case]) -> None:
    """Call by call, outside jit: for functions whose results' shapes depend on values."""
    for case in cases:
        mine, others = (_found(space, case.name)(*case.args, **case.keywords) for space in (ours, theirs))
        equal(mine, others, case)


def _is_float(x: Any) -> bool:
    return (
        not np.issubdtype(x.dtype, np.integer)
        and x.dtype != np.bool_
        and not np.issubdtype(x.dtype, np.complexfloating)
    )


def _slopes(package: Any, namespace: Any, opened: Sequence[_Opened]) -> Callable[[Any], Any]:
    """The gradients of a weighted sum of each call's float results."""

    def total(one: _Opened, floats: Any, arrays: Any) -> Any:
        rest = iter(floats)
        given = [next(rest) if _is_float(x) else x for x in arrays]
        found = [x for x in _leaves(one.call(namespace, given)) if _is_float(x)]
        return sum(((x * np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)).sum() for x in found), start=0.0)

    def all_of(arrays: Any) -> Any:
        return [
            package.grad(lambda floats, one=one, mine=mine: total(one, floats, mine))([x for x in mine if _is_float(x)])
            for one, mine in zip(opened, arrays, strict=True)
        ]

    return all_of


def gradients_like(ours: Any, theirs: Any, cases: Sequence[Case], peer: Any) -> None:
    """First gradients, of the cases that are smooth and take floats to floats."""
    opened = [one for one in _opened(cases) if one.case.smooth and any(_is_float(x) for x in one.arrays)]
    arrays = [one.arrays for one in opened]
    mine = sw.jit(_slopes(sw, ours, opened))(arrays)
    others = peer.jit(_slopes(peer, theirs, opened))(arrays)
    for one, x, y in zip(opened, mine, others, strict=True):
        equal(x, y, one.case)


def vmap_like_loop(namespace: Any, cases: Sequence[Case]) -> None:
    """Mapped over two elements, each call gives what it gives for each of them."""
    opened = [one for one in _opened(cases) if one.arrays]
    second = [[np.ascontiguousarray(x[..., ::-1]) if x.ndim else x for x in one.arrays] for one in opened]
    both = [
        [np.stack(pair) for pair in zip(one.arrays, other, strict=True)]
        for one, other in zip(opened, second, strict=True)
    ]

    def mapped(arrays: Any) -> Any:
        return [
            sw.vmap(lambda *mine, one=one: one.call(namespace, mine))(*batch)
            for one, batch in zip(opened, arrays, strict=True)
        ]

    one_by_one = sw.jit(lambda *turns: [_all_of(namespace, opened)(arrays) for arrays in turns])
    found = sw.jit(mapped)(both)
    for turn, wanted in enumerate(one_by_one([one.arrays for one in opened], second)):
        for one, x, y in zip(opened, found, wanted, strict=True):
            equal([leaf[turn] for leaf in _leaves(x)], y, one.case, types=False)


def layouts_of(mesh: Any, ndim: int, which: str) -> NamedSharding:
    """The first dim over all axes of the mesh; or the last over its first axis, the dim before it over the others."""
    if not ndim:
        return NamedSharding(mesh, PartitionSpec())
    first, *rest = mesh.axis_names
    if which == "first":
        return NamedSharding(mesh, PartitionSpec((first, *rest)))
    if ndim == 1:
        return NamedSharding(mesh, PartitionSpec(first))
    return NamedSharding(mesh, PartitionSpec(*[None] * (ndim - 2), tuple(rest), first))


def mesh_like_one_device(mesh: Any, namespace: Any, cases: Sequence[Case], which: str) -> None:
    """The same calls on arrays that lie on many devices; `which` dim is cut, evenly or not: "first" or "last"."""
    opened = _opened(cases)
    arrays = [one.arrays for one in opened]
    placed = [[sw.device_put(x, layouts_of(mesh, x.ndim, which)) for x in mine] for mine in arrays]
    run = sw.jit(_all_of(namespace, opened))
    for case, x, y in zip(cases, run(placed), run(arrays), strict=True):
        equal(x, y, case)
