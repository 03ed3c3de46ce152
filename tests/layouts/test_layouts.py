"""Every public array function on 8 devices as on one: its first and its last dim cut, into equal pieces and not.

The tables in this folder have one call or more of each. A function without a call fails `test_every_function_is_here`.
"""

import importlib
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import shardwise as sw
from shardwise import scipy
from tests.layouts import of_lax, of_nn, of_numpy, of_random, of_scipy
from tests.layouts.call import Call
from tests.layouts.sweep import on_many_devices_as_on_one
from tests.test_examples import public

SIZES = {"even": 8, "uneven": 10}  # on a mesh of 4 × 2: 10 rows lie on five devices of eight, 10 columns as 3, 3, 3, 1
TABLES = (of_numpy, of_lax, of_nn, of_random, of_scipy)
NAMESPACES = (
    *("numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random", "ops"),
    *("scipy.special", "scipy.linalg", "scipy.stats"),
)
BATCH = 24
KEY_WORDS = 2
SAMPLE = 30  # one call of this many is in every run; `make slow` has all

NO_ARRAY = "takes and makes no array"
ON_THE_HOST = "reads memory, files or Python's numbers, before there is an array that could be cut"
EXCEPTIONS = {
    "lax.after_all": "makes a token, which holds nothing",
    "lax.create_token": "makes a token, which holds nothing",
    "lax.dce_sink": "gives nothing back",
    **dict.fromkeys(("lax.pcast", "lax.pvary"), "changes the type of a value of shard_map, and no number"),
    "lax.rng_uniform": "gives other numbers at every call",
    "lax.with_sharding_constraint": "is what cuts, in every call that makes an array",
    "numpy.from_dlpack": "takes memory of one device; tests/numpy/test_array_api.py",
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


def all_calls(how: str) -> list[Call]:
    return [one for table in TABLES for one in table.calls(SIZES[how])]


def in_every_run(one: Call) -> bool:
    return zlib.crc32(one.name.encode()) % SAMPLE == 0


def batches() -> list[Any]:
    found = []
    for how in SIZES:
        calls = [one for one in all_calls(how) if one.compiled]
        for marks, mine in (
            ((), [one for one in calls if in_every_run(one)]),
            (pytest.mark.slow, [one for one in calls if not in_every_run(one)]),
        ):
            for start in range(0, len(mine), BATCH):
                batch = mine[start : start + BATCH]
                found.append(pytest.param(batch, id=f"{how}-{batch[0]}-{batch[-1]}", marks=marks))
    return found


@pytest.mark.parametrize("calls", batches())
def test_compiled(mesh, calls):
    on_many_devices_as_on_one(mesh, calls)


@pytest.mark.parametrize("how", [pytest.param("even", marks=pytest.mark.slow), "uneven"])
def test_as_it_is(mesh, how):
    on_many_devices_as_on_one(mesh, [one for one in all_calls(how) if not one.compiled], compiled=False)


def functions() -> Iterator[tuple[str, Any]]:
    """The public functions of the array namespaces, by their names."""
    spaces = [(name, importlib.import_module(f"shardwise.{name}")) for name in NAMESPACES]
    for name in scipy.stats.__all__:
        if isinstance(found := getattr(scipy.stats, name), ModuleType):
            spaces.append((f"scipy.stats.{name}", found))
    for space, module in spaces:
        for name, function in public(module):
            yield f"{space}.{name}", function


def looked_up(name: str) -> Any:
    found: Any = sw
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_every_function_is_here():
    """Under its own name, or as the same function under another."""
    shown = {id(looked_up(one.name)) for one in all_calls("even")}
    known = dict(functions())
    missing = [name for name, function in known.items() if id(function) not in shown and name not in EXCEPTIONS]
    assert not missing, f"public functions without a call in tests/layouts: {' '.join(missing)}"
    idle = [name for name in EXCEPTIONS if name not in known or id(known[name]) in shown]
    assert not idle, f"exceptions that are none: {' '.join(idle)}"


@pytest.mark.parametrize("how", SIZES)
def test_dims_are_cut_evenly_and_not(how):
    """Of each function's calls with arrays one has `n` elements along a first dim, and one along a last dim.

    The last dim of words that make a key has two elements: there it is the dim before.
    """
    size, calls = SIZES[how], [one for one in all_calls(how) if one.arrays]
    names = {one.name for one in calls}
    first = {one.name for one in calls if any(x.shape[:1] == (size,) for x in one.arrays)}
    last = {
        one.name for one in calls for x in one.arrays if x.shape[-1:] == (size,) or x.shape[-2:] == (size, KEY_WORDS)
    }
    assert not sorted(names - first)
    assert not sorted(names - last)
