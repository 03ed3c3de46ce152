"""Every public array function on 8 devices, compared with one: sharded along the first and last dim, evenly and not.

The `*_calls` modules have one or more calls of each function. `test_every_function_has_a_call` fails for a function
without one. The first call of every family runs by default, `make slow` runs the others.
"""

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import shardwise as sw
from shardwise import scipy
from tests.layouts import lax_calls, nn_calls, numpy_calls, random_calls, scipy_calls
from tests.layouts.call import Call
from tests.layouts.sweep import check_layouts
from tests.test_examples import public

SIZES = {"even": 8, "uneven": 10}  # on a 4 × 2 mesh, 10 rows are on five of eight devices, 10 columns are 3, 3, 3, 1
FAMILIES = [
    family for module in (numpy_calls, lax_calls, nn_calls, random_calls, scipy_calls) for family in module.FAMILIES
]
NAMESPACES = (
    *("numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random", "ops"),
    *("scipy.special", "scipy.linalg", "scipy.stats", "scipy.fft", "scipy.sparse.linalg"),
    *("scipy.signal", "scipy.ndimage", "scipy.cluster.vq", "image"),
)
BATCH = 24
KEY_WORDS = 2

NO_ARRAY = "has no array arguments or results"
ON_THE_HOST = "reads memory, files or Python scalars, which have no sharding"
EXCEPTIONS = {
    "lax.after_all": "returns a token, which has no elements",
    "lax.create_token": "returns a token, which has no elements",
    "lax.dce_sink": "returns nothing",
    **dict.fromkeys(("lax.pcast", "lax.pvary"), "changes only the type of a value inside shard_map"),
    "lax.rng_uniform": "returns different numbers in every call",
    "lax.with_sharding_constraint": "shards the results of all calls without array arguments",
    "numpy.from_dlpack": "accepts memory of one device; see tests/numpy/test_interchange.py",
    **dict.fromkeys(("numpy.frombuffer", "numpy.fromfile", "numpy.fromiter", "numpy.fromstring"), ON_THE_HOST),
    **dict.fromkeys(
        (
            *("numpy.__array_namespace_info__", "numpy.broadcast_shapes", "numpy.einsum_path", "numpy.finfo"),
            *("numpy.iinfo", "numpy.isdtype", "numpy.issubdtype", "numpy.promote_types", "random.key_dtype"),
            *("lax.broadcast_shapes", "lax.conv_dimension_numbers", "lax.conv_general_permutations"),
            *("lax.conv_general_shape_tuple", "lax.conv_shape_tuple", "lax.conv_transpose_shape_tuple"),
            *("lax.padtype_to_pads", "lax.reduce_window_shape_tuple", "nn.get_scaled_dot_general_config"),
        ),
        NO_ARRAY,
    ),
}


def all_calls(divides: str) -> list[Call]:
    return [call for family in FAMILIES for call in family(SIZES[divides])]


def batches() -> list[Any]:
    """Return the compiled calls in batches: for each size the first of every family, and then the others, as slow."""
    params = []
    for divides, size in SIZES.items():
        families = [[call for call in family(size) if call.compiled] for family in FAMILIES]
        first = [calls[0] for calls in families if calls]
        others = [call for calls in families for call in calls[1:]]
        for marks, calls in (((), first), (pytest.mark.slow, others)):
            for start in range(0, len(calls), BATCH):
                batch = calls[start : start + BATCH]
                params.append(pytest.param(batch, id=f"{divides}-{batch[0]}-{batch[-1]}", marks=marks))
    return params


@pytest.mark.slow
@pytest.mark.parametrize("calls", batches())
def test_compiled_calls(mesh, calls):
    check_layouts(mesh, calls)


@pytest.mark.parametrize("divides", [pytest.param("even", marks=pytest.mark.slow), "uneven"])
def test_eager_calls(mesh, divides):
    check_layouts(mesh, [call for call in all_calls(divides) if not call.compiled], compiled=False)


def functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions of the array namespaces with their names."""
    modules = [(name, importlib.import_module(f"shardwise.{name}")) for name in NAMESPACES]
    for name in scipy.stats.__all__:
        if isinstance(member := getattr(scipy.stats, name), ModuleType):
            modules.append((f"scipy.stats.{name}", member))
    for namespace, module in modules:
        for name, function in public(module):
            yield f"{namespace}.{name}", function


def look_up(name: str) -> Any:
    result: Any = sw
    for part in name.split("."):
        result = getattr(result, part)
    return result


def test_every_function_has_a_call():
    """An alias has a call if the function has one under another name."""
    called = {id(look_up(call.name)) for call in all_calls("even")}
    known = dict(functions())
    missing = [name for name, function in known.items() if id(function) not in called and name not in EXCEPTIONS]
    assert not missing, f"public functions without a call in tests/layouts: {' '.join(missing)}"
    outdated = [name for name in EXCEPTIONS if name not in known or id(known[name]) in called]
    assert not outdated, f"exceptions that do not exist or have a call: {' '.join(outdated)}"


@pytest.mark.parametrize("divides", SIZES)
def test_first_and_last_dims_have_the_size(divides):
    """Of the calls of each function with arrays, one has `n` elements along a first dim, and one along a last dim.

    The last dim of key data has two elements: there it is the dim before.
    """
    size, calls = SIZES[divides], [call for call in all_calls(divides) if call.arrays]
    names = {call.name for call in calls}
    first = {call.name for call in calls if any(x.shape[:1] == (size,) for x in call.arrays)}
    last = {
        call.name for call in calls for x in call.arrays if x.shape[-1:] == (size,) or x.shape[-2:] == (size, KEY_WORDS)
    }
    assert not sorted(names - first)
    assert not sorted(names - last)
