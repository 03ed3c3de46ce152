"""Collectives: devices compute what `exchange` computes in numpy."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from shardwise.base._jaxlib import compile_text, launcher, put, result_handler
from shardwise.compiler.dtypes import SHORT_NAMES, DType
from shardwise.compiler.ir.op import NumpyArray, Op
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.lower.lower import lower
from shardwise.compiler.ops.collective.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    CoarseningPermute,
    Collective,
    DeviceIndex,
    LocalSlice,
    PadOrTrim,
    Permute,
    PPermute,
    ReduceScatter,
    ShardToPartial,
    ToPartial,
)
from shardwise.compiler.ops.collective.exchange_windows import ExchangeWindows
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.shape.roll import Rotate
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.reduction import MAX, MIN, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import MissingRuleError
from shardwise.runtime.client import devices
from tests.compiler.ops.cases import one_op, special_values
from tests.device_shards import shards_to_numpy

# For each mesh, the axes that collectives on it run over.
COMPILED = {
    AbstractMesh((8,), ("a",)): [("a",)],
    AbstractMesh((4, 2), ("a", "b")): [("a",), ("b",), ("a", "b"), ("b", "a")],
    AbstractMesh((2, 2, 2), ("a", "b", "c")): [("b",), ("c", "a"), ("a", "b", "c"), ("c", "a", "b")],
}
MESHES = tuple(COMPILED)
# A dim with shards of 8 or 3 elements; offset, stride from device to device, width and perhaps divisor of the window.
WINDOWS = (
    (0, (-1, 8, 10)),  # one neighbour on each side
    (0, (1, 8, 8)),  # shifted by one
    (0, (3, 5, 4)),  # shards of another size
    (2, (60, -8, 8)),  # in reverse order
    (1, (-2, 3, 9)),  # beyond the next neighbour
    (2, (0, 0, 64)),  # the array dim on every device
    (0, (-20, 8, 4)),  # partly out of bounds
    (0, (1000, 8, 4)),  # out of bounds
    (0, (-3, 8, 6, 3)),  # with a divisor
)


def exchanges(count: int) -> list[tuple[int, Any, Any]]:
    """Return dims with shards of 8 or 3 elements, the sources in them, and windows, for `count` devices."""
    two = ((0, 5, 5 * count, 0), (5, 3, 3 * count - 2, 5 * count))  # the shards of two arrays, the second uneven
    return [
        (0, two, ((0, 8, 8, 1),)),  # concatenated
        (2, two, ((-3, 8, 9, 1),)),  # padded
        (0, ((0, 8, 8 * count, 0), (0, 8, 8 * count, 8 * count)), ((0, 16, 16, 1),)),  # tiled
        (2, ((0, 8, 8 * count - 5, 5), (0, 8, 8 * count, 5 - 8 * count)), ((0, 8, 8, 1),)),  # rolled
        (1, ((0, 3, 3 * count - 1, 0),), ((3 * count - 4, -3, 3, 1),)),  # in reverse order
        (0, ((0, 8, 8 * count, 0),), ((0, 4, 4, 1), (4 * count, 4, 4, 1))),  # split into two windows
        (0, ((2, 4, 4 * count, 7), (0, 1, count, 5 * count + 9)), ((0, 0, 6 * count, 1),)),  # everything, with gaps
        (0, tuple((n % 8, 1, count, n * count) for n in range(80)), ((0, 80, 80, 1),)),  # many short arrays
        (0, ((0, 8, 8 * count, 0),), ((1000, 8, 4, 1),)),  # out of bounds
        (0, ((0, 8, 8 * count, 0),), ((0, 0, 0, 1),)),  # nothing
        (0, ((0, 8, 8 * count, 0),), ((-3, 8, 6, 3), (2, 5, 3, 2))),  # with divisors
    ]


SHARD_SHAPE = (8, 3, 8)  # dims 0 and 2 divide into all numbers of blocks on a mesh of 8 devices


def axes_of(mesh: AbstractMesh) -> list[tuple[str, ...]]:
    """Return every ordered choice of axes."""
    return [axes for count in range(len(mesh.axis_names)) for axes in permutations(mesh.axis_names, count + 1)]


def collectives(mesh: AbstractMesh, choices: list[tuple[str, ...]]) -> Iterator[Collective]:
    """Yield collectives on a mesh over each choice of axes."""
    for axes in choices:
        count = mesh.extent(axes)
        yield from (AllReduce(axes, reduction) for reduction in (SUM, MAX, MIN))
        yield from (AllGather(dim, axes, count) for dim in (0, 1))
        yield ReduceScatter(0, axes, count, SUM)
        yield ReduceScatter(2, axes, count, MAX)
        yield from (AllToAll(split, join, axes, count) for split, join in ((0, 1), (2, 0), (0, 0)))
        yield from (LocalSlice(dim, axes, count) for dim in (0, 2))
        yield from (LocalSlice(dim, axes, count, of) for dim, of in ((0, 8 * count), (1, count), (2, 3 * count)))
        yield DeviceIndex(axes)
        yield ToPartial(axes)
        yield from (ShardToPartial(dim, axes, count) for dim in (0, 1))
    for before, after in axes_of_equal_extent(mesh, choices):
        yield Permute(before, after)
    for axes in choices:
        last = mesh.extent(axes) - 1
        yield PPermute(axes, ((0, last), (last, 0)))  # the devices between get zeros
    yield PPermute(choices[0], ())
    yield from (CoarseningPermute(old, new, mesh.extent(old) // mesh.extent(new)) for old, new in coarsening_axes(mesh))
    yield from (PadOrTrim(dim, size) for dim, size in ((0, 11), (1, 2), (2, 8), (1, 0)))
    for axes in choices:
        yield from (TakeWindow(dim, axes, mesh.extent(axes), *window) for dim, window in WINDOWS)
        count = mesh.extent(axes)
        yield from (ExchangeWindows(dim, axes, count, *exchange) for dim, *exchange in exchanges(count))
        yield from (Rotate(dim, axes, mesh.extent(axes), by) for dim, by in ((0, 1), (2, 8), (1, 4), (0, 0)))


def coarsening_axes(mesh: AbstractMesh) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return pairs of axes without a common one, of which the first has a multiple of the second's devices."""
    pairs = [(a, b) for a in axes_of(mesh) for b in axes_of(mesh) if not set(a) & set(b)]
    return [(a, b) for a, b in pairs if mesh.extent(a) % mesh.extent(b) == 0]


def axes_of_equal_extent(
    mesh: AbstractMesh, choices: list[tuple[str, ...]]
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return pairs of axes with the same number of devices."""
    return [(a, b) for a in choices for b in choices if a != b and mesh.extent(a) == mesh.extent(b)]


def random_shards(mesh: AbstractMesh, dtype: DType) -> list[NumpyArray]:
    """Return a different shard for each device, with sums that are exact in every dtype."""
    rng = np.random.default_rng(8)
    high = 2 if dtype == np.bool_ else 8
    return [np.asarray(rng.integers(0, high, SHARD_SHAPE).astype(dtype)) for _ in range(mesh.size)]


@lru_cache(maxsize=1)
def collective_cases() -> list[tuple[AbstractMesh, Collective, str]]:
    cases = []
    for mesh in MESHES:
        for number, op in enumerate(collectives(mesh, COMPILED[mesh])):
            # Ops take turns with the dtypes; reductions over all axes are tested with every dtype.
            names = ["f32", "i32", "bf16", "bool", "u8", "f16"]
            reduces = isinstance(op, (AllReduce, ReduceScatter)) and op.axes == mesh.axis_names[::-1]
            cases += [(mesh, op, name) for name in (names if reduces else [names[number % len(names)]])]
    return cases


@pytest.mark.table(default=24)
@pytest.mark.parametrize(("mesh", "op", "name"), collective_cases(), ids=str)
def test_devices_compute_what_exchange_computes(mesh, op, name):
    shards = [] if isinstance(op, DeviceIndex) else random_shards(mesh, SHORT_NAMES[name])
    expected = op.exchange(mesh, shards)
    results = run(program_of(op, shards), mesh, shards)
    for device, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
        assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
        assert actual.tobytes() == wanted.tobytes(), f"device {device} has\n{actual}\nnot\n{wanted}"


def test_collectives_of_parts_are_parts_of_the_collective_along_dims_that_do_not_move():
    mesh = MESHES[1]
    applied = set()
    for op in collectives(mesh, COMPILED[mesh]):
        if op.moved_dims is None:
            continue
        shards = random_shards(mesh, np.dtype(np.float32))
        expected = op.exchange(mesh, shards)
        for dim in {0, 2}.difference(op.moved_dims):
            halves = [op.exchange(mesh, [np.split(shard, 2, dim)[half] for shard in shards]) for half in range(2)]
            joined = [np.concatenate(parts, dim) for parts in zip(*halves, strict=True)]
            assert [array.tobytes() for array in joined] == [array.tobytes() for array in expected], (op, dim)
            applied.add(op.name)
    assert applied >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute"}


def program_of(op: Op, shards: Sequence[NumpyArray]) -> Program:
    """Return a program that applies one op to shards of this type."""
    return one_op(op, [ArrayType(shards[0].shape, shards[0].dtype)] if shards else [])


def run(program: Program, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Run a local program on all devices. Return the result of each device."""
    verify(program)
    module = lower(LocalProgram(program, mesh, (), ()))
    used = devices()[: mesh.size]
    (out,) = program.out_types
    launch = launcher(compile_text(module.text, used), [result_handler(out.shape, out.dtype, used)])
    (result,) = launch([put(shards, used, used)] if shards else [])
    return shards_to_numpy(result)


@pytest.mark.parametrize(
    ("op", "shape", "attribute"),
    [
        (AllGather(1, ("a",), 8), (4, 8), "all_gather_dim = 0"),
        (ReduceScatter(1, ("a",), 8, SUM), (4, 8), "scatter_dimension = 0"),
        (AllToAll(0, 1, ("a",), 8), (8, 4), "split_dimension = 0 : i64, concat_dimension = 0"),
        (AllToAll(1, 0, ("a",), 8), (1, 8), "split_dimension = 0 : i64, concat_dimension = 0"),
    ],
    ids=str,
)
def test_blocks_are_contiguous_when_they_are_sent(op, shape, attribute):
    program = one_op(op, [ArrayType(shape, np.float32)])
    assert attribute in lower(LocalProgram(program, MESHES[0], (), ())).text


@pytest.mark.parametrize("split", [0, 1, 2])
def test_all_to_all_exchanges_arrays_of_one_dim(split):
    """Blocks of several dims take XLA several times as long to compile."""
    program = one_op(AllToAll(split, 0, ("a",), 8), [ArrayType((8, 16, 8), np.float32)])
    (line,) = [
        line
        for line in lower(LocalProgram(program, MESHES[0], (), ())).text.splitlines()
        if "stablehlo.all_to_all" in line
    ]
    assert line.count("tensor<1024xf32>") == 2


def test_every_collective_has_cases():
    tested = {op.name for _, op, _ in collective_cases()}
    # Tested in tests/api/callbacks/test_callback.py and, since it has six operands, in
    # tests/manual/test_ragged_all_to_all.py.
    elsewhere = {"call_once", "ragged_all_to_all"}
    assert tested == {name for name, op in Op.registry.items() if issubclass(op, Collective)} - elsewhere


def test_collectives_that_xla_removes_return_their_operand():
    alone = AbstractMesh((1, 1), ("a", "b"))
    for op in collectives(alone, axes_of(alone)):
        shards = random_shards(alone, np.dtype(np.float32))
        if op.removed_on_one_device and op.out_type(ArrayType(SHARD_SHAPE, np.dtype(np.float32))).shape == SHARD_SHAPE:
            np.testing.assert_array_equal(op.exchange(alone, shards), shards, err_msg=str(op))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_collectives_can_be_printed_and_parsed(mesh):
    for op in collectives(mesh, COMPILED[mesh]):
        types = [] if isinstance(op, DeviceIndex) else [ArrayType(SHARD_SHAPE, np.float32)]
        program = one_op(op, types)
        assert parse_program(str(program)) == program


def array_and_shards(mesh: AbstractMesh, axes: tuple[str, ...]) -> tuple[NumpyArray, list[NumpyArray]]:
    """Return an array and its shards along dim 0, computed from the positions of devices."""
    array = np.arange(mesh.size * 6, dtype=np.float32).reshape(mesh.size, 6)
    positions = [dict(zip(mesh.axis_names, index, strict=True)) for index in np.ndindex(mesh.axis_sizes)]
    shards = []
    for position in positions:
        number = 0
        for axis in axes:
            number = number * mesh.shape[axis] + position[axis]
        rows = mesh.size // mesh.extent(axes)
        shards.append(array[number * rows : (number + 1) * rows])
    return array, shards


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gathering_the_shards_of_an_array_gives_the_array(mesh):
    for axes in axes_of(mesh):
        array, shards = array_and_shards(mesh, axes)
        for gathered in AllGather(0, axes, mesh.extent(axes)).exchange(mesh, shards):
            np.testing.assert_array_equal(gathered, array)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_local_slices_of_an_array_are_its_shards(mesh):
    for axes in axes_of(mesh):
        array, shards = array_and_shards(mesh, axes)
        slices = LocalSlice(0, axes, mesh.extent(axes)).exchange(mesh, [array] * mesh.size)
        np.testing.assert_array_equal(slices, shards)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_permute_changes_the_axes_and_every_device_sends_once(mesh):
    for before, after in axes_of_equal_extent(mesh, axes_of(mesh)):
        _, shards = array_and_shards(mesh, before)
        _, wanted = array_and_shards(mesh, after)
        permute = Permute(before, after)
        np.testing.assert_array_equal(permute.exchange(mesh, shards), wanted)
        assert sorted(source for source, _ in permute.pairs(mesh)) == list(range(mesh.size))


@pytest.mark.parametrize(
    ("before", "after", "sent"),
    [(("node", "data"), ("data",), 0), (("data",), ("data", "node"), 0), (("data",), ("model",), 24)],
    ids=["removed", "added", "moved"],
)
def test_a_permute_of_axes_with_one_device_sends_nothing(before, after, sent):
    mesh, shard = AbstractMesh((1, 2, 2), ("node", "data", "model")), ArrayType((2, 3), np.float32)
    permute = Permute(before, after)
    assert permute.bytes_sent(shard, mesh) == sent
    assert all(source == target for source, target in permute.pairs(mesh)) == (not sent)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_reduce_scatter_is_a_local_slice_of_an_all_reduce(mesh):
    shards = random_shards(mesh, np.dtype(np.int32))
    for axes in axes_of(mesh):
        count = mesh.extent(axes)
        scattered = ReduceScatter(0, axes, count, SUM).exchange(mesh, shards)
        reduced = LocalSlice(0, axes, count).exchange(mesh, AllReduce(axes, SUM).exchange(mesh, shards))
        np.testing.assert_array_equal(scattered, reduced)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_all_to_all_moves_the_sharding_from_one_dim_to_another(mesh):
    for axes in axes_of(mesh):
        count = mesh.extent(axes)
        array = np.arange(64 * 8).reshape(8, 8, 8)
        rows = LocalSlice(0, axes, count).exchange(mesh, [array] * mesh.size)
        columns = LocalSlice(2, axes, count).exchange(mesh, [array] * mesh.size)
        np.testing.assert_array_equal(AllToAll(2, 0, axes, count).exchange(mesh, rows), columns)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_reducing_a_value_made_partial_gives_the_value(mesh):
    array = np.arange(6, dtype=np.float32)
    for axes in axes_of(mesh):
        terms = ToPartial(axes).exchange(mesh, [array] * mesh.size)
        for total in AllReduce(axes, SUM).exchange(mesh, terms):
            np.testing.assert_array_equal(total, array)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_reducing_shards_made_partial_gives_the_array(mesh):
    array = np.arange(64 * 8, dtype=np.float32).reshape(8, 8, 8)
    for axes in axes_of(mesh):
        count = mesh.extent(axes)
        shards = LocalSlice(2, axes, count).exchange(mesh, [array] * mesh.size)
        for total in AllReduce(axes, SUM).exchange(mesh, ShardToPartial(2, axes, count).exchange(mesh, shards)):
            np.testing.assert_array_equal(total, array)


@pytest.mark.parametrize("name", ["f32", "bf16", "c64", "i32", "bool"])
def test_terms_of_a_replicated_value_do_not_change_its_sign(name):
    """x + -0.0 is x for every x, but -0.0 + 0.0 is 0.0."""
    mesh, dtype = AbstractMesh((8,), ("a",)), SHORT_NAMES[name]
    shards = [np.array([-0.0, 0.0, 1.0]).astype(dtype)] * 8
    op = ToPartial(("a",))
    terms = op.exchange(mesh, shards)
    np.testing.assert_array_equal(run(program_of(op, shards), mesh, shards), terms)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    np.testing.assert_array_equal(total, shards[0])
    np.testing.assert_array_equal(np.signbit(total.real.astype(float)), np.signbit(shards[0].real.astype(float)))


def test_to_partial_leaves_no_nan_on_other_devices():
    mesh = AbstractMesh((8,), ("a",))
    shards = [np.full(2, np.nan, np.float32)] * 8
    terms = run(program_of(ToPartial(("a",)), shards), mesh, shards)
    assert np.isnan(terms[0]).all()
    np.testing.assert_array_equal(terms[1:], np.zeros((7, 2)))


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f8_e4m3fn"])
@pytest.mark.parametrize("op", [AllReduce(("b",), MAX), ReduceScatter(0, ("b",), 2, MIN)], ids=str)
def test_min_and_max_propagate_nan(op, name):
    mesh = AbstractMesh((4, 2), ("a", "b"))
    values = special_values(SHORT_NAMES[name])
    count = len(values)
    pair = [np.resize(column, 2 * count**2) for column in (np.repeat(values, count), np.tile(values, count))]
    actual, expected = (
        np.array(z, float) for z in (run(program_of(op, pair * 4), mesh, pair * 4), op.exchange(mesh, pair * 4))
    )
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("reduction", [MAX, MIN], ids=str)
def test_complex_numbers_have_no_maximum(reduction):
    with pytest.raises(TypeError, match=f"all_reduce: complex numbers have no {reduction}: c64\\[3\\]"):
        AllReduce(("a",), reduction).out_type(ArrayType((3,), np.complex64))


def test_sums_wrap_around():
    mesh = AbstractMesh((8,), ("a",))
    op = AllReduce(("a",), SUM)
    shards = [np.array([200 + device], np.uint8) for device in range(8)]
    expected = [[(8 * 200 + 28) % 256]] * 8
    np.testing.assert_array_equal(run(program_of(op, shards), mesh, shards), expected)
    np.testing.assert_array_equal(op.exchange(mesh, shards), expected)


@pytest.mark.parametrize(
    ("op", "sent"),
    [
        (AllReduce(("a", "b"), SUM), 2 * 7 / 8),
        (AllReduce(("b",), SUM), 2 * 1 / 2),
        (AllGather(0, ("a",), 4), 3),
        (ReduceScatter(0, ("a",), 4, SUM), 3 / 4),
        (AllToAll(0, 1, ("a", "b"), 8), 7 / 8),
        (Permute(("a", "b"), ("b", "a")), 1),
        (CoarseningPermute(("a",), ("b",), 2), 1),
        (LocalSlice(0, ("a",), 4), 0),
        (ToPartial(("a",)), 0),
        (ShardToPartial(0, ("a",), 4), 0),
        (PadOrTrim(0, 9), 0),
    ],
    ids=str,
)
def test_bytes_that_one_device_sends(op, sent):
    """`sent` is relative to the size of the shard, by the ring model."""
    shard = ArrayType((8, 8), np.float32)
    assert op.bytes_sent(shard, AbstractMesh((4, 2), ("a", "b"))) == pytest.approx(sent * 256)


@pytest.mark.parametrize(
    "op", [ReduceScatter(0, ("a",), 4, SUM), AllToAll(0, 1, ("a",), 4), LocalSlice(0, ("a",), 4)], ids=str
)
def test_the_number_of_blocks_must_divide_the_dim(op):
    with pytest.raises(TypeError, match=r"dim 0 of f32\[6,8\] does not divide into 4 blocks"):
        op.out_type(ArrayType((6, 8), np.float32))


def test_a_collective_has_no_reference_on_one_shard():
    with pytest.raises(MissingRuleError, match=r"op 'all_reduce' has no rule 'reference': write AllReduce\.reference"):
        AllReduce(("a",), SUM).reference(np.zeros(3))


def test_a_chain_of_collectives_in_one_program():
    mesh = AbstractMesh((4, 2), ("a", "b"))
    steps = [AllReduce(("b",), SUM), LocalSlice(0, ("a",), 4), Permute(("a", "b"), ("b", "a")), AllGather(0, ("a",), 4)]
    shards = [np.full((4, 2), device, np.int32) for device in range(8)]
    expected: Sequence[NumpyArray] = shards
    for op in steps:
        expected = op.exchange(mesh, expected)

    def body(x):
        for op in steps:
            x = op(x)
        return [x]

    results = run(rewrite("steps", [ArrayType((4, 2), np.int32)], body), mesh, shards)
    np.testing.assert_array_equal(results, expected)
