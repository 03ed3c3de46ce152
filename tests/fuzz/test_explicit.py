"""A few random programs on meshes with Explicit axes. `python -m tests.fuzz.explicit` runs more."""

import pytest

from shardwise.sharding import AxisType
from tests.explicit.samples import check_sample
from tests.fuzz.explicit import check_on_devices, check_program, random_application, random_program

BLOCK = 20  # cases per test

# Programs that failed once: a loop whose carry is batched by vmap alone, a loop with a batched predicate, a reshard
# whose dim an Auto axis shards, too, updates of slices at batched starts, and dims whose axes are picked one by one.
FAILED = (
    54,
    95,
    181,
    374,
    811003371,
    822003479,
    833001765,
    855004623,
    866003947,
    866004511,
    911000812,
    911004774,
    922100448,
    933000499,
    955101699,
    955104903,
)

# Ops that failed once: a replicated scalar that pads an unreduced array, a reshape whose minor factor is picked first,
# attention whose heads other axes use up, and the rounding of an unreduced array.
FAILED_OPS = (731000188, 822002318, 866001974, 966104150)


@pytest.mark.table(default=4)
@pytest.mark.parametrize("first", range(0, 160, BLOCK))
def test_programs_on_explicit_meshes_match_one_device(first):
    for seed in range(first, first + BLOCK):
        check(seed)


@pytest.mark.parametrize("first", range(1000, 1012, 4))
def test_programs_on_explicit_devices_match_one_device(first):
    for seed in range(first, first + 4):
        check(seed, check_on_devices)


@pytest.mark.parametrize("seed", FAILED)
def test_programs_that_failed_once(seed):
    check(seed)


@pytest.mark.parametrize("seed", FAILED_OPS)
def test_ops_that_failed_once(seed):
    check_sample(random_application(seed))


def check(seed, check_case=check_program):
    explicit = random_program(seed)
    try:
        check_case(explicit)
    except Exception as error:
        raise AssertionError(str(explicit)) from error


def test_programs_have_meshes_with_mixed_axis_types():
    kinds = [set(random_program(seed).axis_types) for seed in range(60)]
    assert {AxisType.Explicit} in kinds and {AxisType.Explicit, AxisType.Auto} in kinds
    assert all(AxisType.Explicit in of_mesh for of_mesh in kinds)
