"""Tables of calls, whose results are compared with those of numpy, of JAX, of single calls or of one device.

    CASES = [Case("roll", (X, 2)), Case("roll", (X, 1), {"axis": 0}), …]

    @pytest.mark.table(default=1)
    @pytest.mark.parametrize("cases", batches(CASES), ids=batch_name)
    def test_like_jax(cases):
        values_like(jnp, jax.numpy, cases, jax)

    @pytest.mark.table(default=1)
    @PARTS
    def test_vmap(part):
        vmap_like_loop(jnp, CASES[part])

numpy arrays among the arguments, also inside lists and tuples, become arguments of the compiled function; everything
else is static. All calls of a batch are one program, to save compile time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import NamedSharding, PartitionSpec

try:
    import jax
except ImportError:  # an oracle of most tests, which need not be installed
    jax = None


@final
@dataclass(frozen=True)
class Case:
    """One call. `name`, which may have dots, is looked up in the namespaces that are compared."""

    name: str
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6
    weak: bool = True  # compare weak types; in JAX some depend on the implementation of a function
    smooth: bool = True  # compare gradients, if arguments and results are floats

    def __str__(self) -> str:
        args = [_argument_text(x) for x in self.args]
        keywords = [f"{name}={_argument_text(x)}" for name, x in self.keywords.items()]
        return f"{self.name}({', '.join(args + keywords)})"


def _argument_text(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else str(x)


SAMPLE = 4  # cases of a table that run by default
PARTS = pytest.mark.parametrize("part", [slice(SAMPLE), slice(SAMPLE, None)], ids=["sample", "rest"])


def batches(cases: Sequence[Case], size: int = 24) -> list[list[Case]]:
    """Split a table into a small first batch, which runs by default, and larger ones; each is one program."""
    starts = [0, *range(SAMPLE, len(cases), size)] if cases else []
    return [list(cases[start:stop]) for start, stop in pairwise([*starts, len(cases)])]


def batch_name(cases: Sequence[Case]) -> str:
    return f"{cases[0].name}-{cases[-1].name}"


def _look_up(namespace: Any, name: str) -> Callable[..., Any]:
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace  # type: ignore[no-any-return]


@final
class _CallWithArrays:
    """A case with its arrays extracted, so that it can be called with tracers in their place."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._args = self._extract((case.args, case.keywords))

    def _extract(self, tree: Any) -> Any:
        if isinstance(tree, np.ndarray):
            position = len(self.arrays)
            self.arrays.append(tree)
            return lambda arrays: arrays[position]
        if type(tree) in (list, tuple):
            items = [self._extract(item) for item in tree]
            return lambda arrays: type(tree)(item(arrays) for item in items)
        if type(tree) is dict:
            values = {key: self._extract(value) for key, value in tree.items()}
            return lambda arrays: {key: value(arrays) for key, value in values.items()}
        return lambda arrays: tree

    def call_in(self, namespace: Any, arrays: Sequence[Any]) -> Any:
        args, keywords = self._args(arrays)
        return _look_up(namespace, self.case.name)(*args, **keywords)


def _extract_arrays(cases: Sequence[Case]) -> list[_CallWithArrays]:
    return [_CallWithArrays(case) for case in cases]


def _call_all(namespace: Any, calls: Sequence[_CallWithArrays]) -> Callable[[Any], Any]:
    return lambda arrays: [call.call_in(namespace, operands) for call, operands in zip(calls, arrays, strict=True)]


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def assert_equal(ours: Any, theirs: Any, case: Case, types: bool = True) -> None:
    """Check that values agree to the tolerance of the case, and that shapes, dtypes and weak types are equal."""
    our_leaves, their_leaves = _leaves(ours), _leaves(theirs)
    assert len(our_leaves) == len(their_leaves), f"{case}: {len(our_leaves)} results, expected {len(their_leaves)}"
    for x, y in zip(our_leaves, their_leaves, strict=True):
        actual, expected = np.asarray(x), np.asarray(y)
        assert actual.shape == expected.shape, f"{case}: shape {actual.shape}, expected {expected.shape}"
        if types:
            assert actual.dtype == expected.dtype, f"{case}: dtype {actual.dtype}, expected {expected.dtype}"
            weak = getattr(x, "weak_type", False), getattr(y, "weak_type", False)
            # JAX has weak booleans, which promote like strong ones.
            assert weak[0] == weak[1] or not case.weak or actual.dtype == np.bool_, f"{case}: weak type {weak[0]}"
        is_narrow = actual.dtype.itemsize < 4 and actual.dtype.kind not in "iub"
        if actual.dtype.kind in "iubSU" and expected.dtype.kind in "iub":
            np.testing.assert_array_equal(actual, expected, err_msg=str(case))
        else:
            wide = complex if np.iscomplexobj(expected) else float
            np.testing.assert_allclose(
                actual.astype(wide),
                expected.astype(wide),
                rtol=max(case.rtol, 2e-2 if is_narrow else 0),
                atol=max(case.atol, 1e-2 if is_narrow else 0),
                err_msg=str(case),
            )


def values_like(ours: Any, theirs: Any, cases: Sequence[Case], peer: Any) -> None:
    """Compare the calls in two namespaces, each as one compiled program of its package."""
    calls = _extract_arrays(cases)
    arrays = [call.arrays for call in calls]
    our_results = sw.jit(_call_all(ours, calls))(arrays)
    their_results = peer.jit(_call_all(theirs, calls))(arrays)
    for case, x, y in zip(cases, our_results, their_results, strict=True):
        assert_equal(x, y, case)


def values_like_numpy(ours: Any, cases: Sequence[Case], numpy: Any = np) -> None:
    """Compare the values and shapes of the calls with numpy, whose dtypes are wider."""
    calls = _extract_arrays(cases)
    our_results = sw.jit(_call_all(ours, calls))([call.arrays for call in calls])
    for case, x in zip(cases, our_results, strict=True):
        with np.errstate(all="ignore"):
            assert_equal(x, _look_up(numpy, case.name)(*case.args, **case.keywords), case, types=False)


def values_like_both(
    ours: Any, cases: Sequence[Case], more: Sequence[Case] = (), numpy: Any = np, theirs: str = "numpy"
) -> None:
    """Compare `cases` with numpy, and `cases` and `more` with JAX if it is installed, in one program of ours."""
    calls = _extract_arrays([*cases, *more])
    arrays = [call.arrays for call in calls]
    our_results = sw.jit(_call_all(ours, calls))(arrays)
    for case, x in zip(cases, our_results, strict=False):
        with np.errstate(all="ignore"):
            assert_equal(x, _look_up(numpy, case.name)(*case.args, **case.keywords), case, types=False)
    if jax is not None:
        their_results = jax.jit(_call_all(_look_up(jax, theirs), calls))(arrays)
        for call, x, y in zip(calls, our_results, their_results, strict=True):
            assert_equal(x, y, call.case)


def eagerly_like(ours: Any, theirs: Any, cases: Sequence[Case]) -> None:
    """Compare the calls outside of jit, for functions whose result shapes depend on values."""
    for case in cases:
        our_result, their_result = (
            _look_up(namespace, case.name)(*case.args, **case.keywords) for namespace in (ours, theirs)
        )
        assert_equal(our_result, their_result, case)


def _is_float(x: Any) -> bool:
    return (
        not np.issubdtype(x.dtype, np.integer)
        and x.dtype != np.bool_
        and not np.issubdtype(x.dtype, np.complexfloating)
    )


def _gradients(package: Any, namespace: Any, calls: Sequence[_CallWithArrays]) -> Callable[[Any], Any]:
    """Return a function of the gradients of a weighted sum of the float results of each call."""

    def total(call: _CallWithArrays, floats: Any, arrays: Any) -> Any:
        remaining = iter(floats)
        arguments = [next(remaining) if _is_float(x) else x for x in arrays]
        results = [x for x in _leaves(call.call_in(namespace, arguments)) if _is_float(x)]
        return sum(((x * np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)).sum() for x in results), start=0.0)

    def all_gradients(arrays: Any) -> Any:
        return [
            package.grad(lambda floats, call=call, operands=operands: total(call, floats, operands))(
                [x for x in operands if _is_float(x)]
            )
            for call, operands in zip(calls, arrays, strict=True)
        ]

    return all_gradients


def gradients_like(ours: Any, theirs: Any, cases: Sequence[Case], peer: Any) -> None:
    """Compare the gradients of the smooth cases with float arguments and results."""
    calls = [call for call in _extract_arrays(cases) if call.case.smooth and any(_is_float(x) for x in call.arrays)]
    arrays = [call.arrays for call in calls]
    our_results = sw.jit(_gradients(sw, ours, calls))(arrays)
    their_results = peer.jit(_gradients(peer, theirs, calls))(arrays)
    for call, x, y in zip(calls, our_results, their_results, strict=True):
        assert_equal(x, y, call.case)


def vmap_like_loop(namespace: Any, cases: Sequence[Case]) -> None:
    """Compare vmap over two elements with two single calls."""
    calls = [call for call in _extract_arrays(cases) if call.arrays]
    second = [[np.ascontiguousarray(x[..., ::-1]) if x.ndim else x for x in call.arrays] for call in calls]
    both = [
        [np.stack(pair) for pair in zip(call.arrays, other, strict=True)]
        for call, other in zip(calls, second, strict=True)
    ]

    def mapped(arrays: Any) -> Any:
        return [
            sw.vmap(lambda *operands, call=call: call.call_in(namespace, operands))(*batch)
            for call, batch in zip(calls, arrays, strict=True)
        ]

    single_calls = sw.jit(lambda *elements: [_call_all(namespace, calls)(arrays) for arrays in elements])
    results = sw.jit(mapped)(both)
    for element, expected in enumerate(single_calls([call.arrays for call in calls], second)):
        for call, x, y in zip(calls, results, expected, strict=True):
            assert_equal([leaf[element] for leaf in _leaves(x)], y, call.case, types=False)


def sharding_along(mesh: Any, ndim: int, sharded_dim: str) -> NamedSharding:
    """Return a sharding of the first dim over all mesh axes, or of the last two dims over one part of the axes each."""
    if not ndim:
        return NamedSharding(mesh, PartitionSpec())
    first, *remaining = mesh.axis_names
    if sharded_dim == "first":
        return NamedSharding(mesh, PartitionSpec((first, *remaining)))
    if ndim == 1:
        return NamedSharding(mesh, PartitionSpec(first))
    return NamedSharding(mesh, PartitionSpec(*[None] * (ndim - 2), tuple(remaining), first))


def mesh_like_one_device(mesh: Any, namespace: Any, cases: Sequence[Case], sharded_dim: str) -> None:
    """Compare the calls on sharded arrays with those on one device. `sharded_dim` is "first" or "last"."""
    calls = _extract_arrays(cases)
    arrays = [call.arrays for call in calls]
    sharded = [[sw.device_put(x, sharding_along(mesh, x.ndim, sharded_dim)) for x in operands] for operands in arrays]
    run = sw.jit(_call_all(namespace, calls))
    for case, x, y in zip(cases, run(sharded), run(arrays), strict=True):
        assert_equal(x, y, case)
