"""Collectives: what XLA's devices do to each other's pieces is what `exchange` says in numpy."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np
import pytest

from shardwise._jaxlib import compile_text, launcher, put, result_handler, shards_to_numpy
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
    ToPartial,
)
from shardwise.compiler.ops.collective.take_window import TakeWindow
from shardwise.compiler.ops.shape.roll import Rotate
from shardwise.compiler.partition.local_program import LocalProgram
from shardwise.compiler.reduction import MAX, MIN, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.trace.build import rewrite
from shardwise.errors import MissingRuleError
from shardwise.runtime.client import devices
from tests.compiler.ops.cases import one_op, special_values

# Each mesh with the axes, in order, that collectives on it run over.
COMPILED = {
    AbstractMesh((8,), ("a",)): [("a",)],
    AbstractMesh((4, 2), ("a", "b")): [("a",), ("b",), ("a", "b"), ("b", "a")],
    AbstractMesh((2, 2, 2), ("a", "b", "c")): [("b",), ("c", "a"), ("a", "b", "c"), ("c", "a", "b")],
}
MESHES = tuple(COMPILED)
# Along dims of 8 and of 3 elements a piece: offset, stride from device to device, width.
WINDOWS = (
    (0, (-1, 8, 10)),  # one neighbour on each side
    (0, (1, 8, 8)),  # shifted by one
    (0, (3, 5, 4)),  # pieces of another size
    (2, (60, -8, 8)),  # the other way round
    (1, (-2, 3, 9)),  # further than the next neighbour
    (2, (0, 0, 64)),  # everything, on all
    (0, (-20, 8, 4)),  # partly outside
    (0, (1000, 8, 4)),  # nothing
    (0, (-3, 8, 6, 3)),  # a third of the way
)
PIECE = (8, 3, 8)  # dims 0 and 2 divide into any number of blocks that a mesh of 8 asks for


def axes_of(mesh: AbstractMesh) -> list[tuple[str, ...]]:
    """Every ordered choice of axes."""
    return [axes for count in range(len(mesh.axis_names)) for axes in permutations(mesh.axis_names, count + 1)]


def collectives(mesh: AbstractMesh) -> Iterator[Collective]:
    for axes in COMPILED[mesh]:
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
    for before, after in permutes(mesh, COMPILED[mesh]):
        yield Permute(before, after)
    for axes in COMPILED[mesh]:
        last = mesh.extent(axes) - 1
        yield PPermute(axes, ((0, last), (last, 0)))  # those between get zeros
    yield PPermute(COMPILED[mesh][0], ())
    yield from (CoarseningPermute(old, new, mesh.extent(old) // mesh.extent(new)) for old, new in handed(mesh))
    yield from (PadOrTrim(dim, size) for dim, size in ((0, 11), (1, 2), (2, 8), (1, 0)))
    for axes in COMPILED[mesh]:
        yield from (TakeWindow(dim, axes, mesh.extent(axes), *window) for dim, window in WINDOWS)
        yield from (Rotate(dim, axes, mesh.extent(axes), by) for dim, by in ((0, 1), (2, 8), (1, 4), (0, 0)))


def handed(mesh: AbstractMesh) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pairs of choices without a common axis, of which the first cuts into several times as many."""
    pairs = [(a, b) for a in axes_of(mesh) for b in axes_of(mesh) if not set(a) & set(b)]
    return [(a, b) for a, b in pairs if mesh.extent(a) % mesh.extent(b) == 0]


def permutes(mesh: AbstractMesh, choices: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pairs of choices that cut into equally many pieces."""
    return [(a, b) for a in choices for b in choices if a != b and mesh.extent(a) == mesh.extent(b)]


def pieces_of(mesh: AbstractMesh, dtype: DType) -> list[NumpyArray]:
    """One piece a device, all different, with sums that are exact in every dtype."""
    rng = np.random.default_rng(8)
    high = 2 if dtype == np.bool_ else 8
    return [np.asarray(rng.integers(0, high, PIECE).astype(dtype)) for _ in range(mesh.size)]


@lru_cache(maxsize=1)
def cases() -> list[tuple[AbstractMesh, Collective, str]]:
    found = []
    for mesh in MESHES:
        for number, op in enumerate(collectives(mesh)):
            # The dtypes take turns; the ways to reduce see each.
            names = ["f32", "i32", "bf16", "bool", "u8", "f16"]
            reduces = isinstance(op, (AllReduce, ReduceScatter)) and op.axes == mesh.axis_names[::-1]
            found += [(mesh, op, name) for name in (names if reduces else [names[number % len(names)]])]
    return found


@pytest.mark.parametrize(("mesh", "op", "name"), cases(), ids=str)
def test_devices_do_what_exchange_says(mesh, op, name):
    pieces = [] if isinstance(op, DeviceIndex) else pieces_of(mesh, SHORT_NAMES[name])
    expected = op.exchange(mesh, pieces)
    found = run(alone(op, pieces), mesh, pieces)
    for device, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes(), f"device {device} has\n{a}\nnot\n{b}"


def alone(op: Op, pieces: Sequence[NumpyArray]) -> Program:
    """The program that is one op on pieces like these."""
    return one_op(op, [ArrayType(pieces[0].shape, pieces[0].dtype)] if pieces else [])


def run(program: Program, mesh: AbstractMesh, pieces: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Every device's result of a local program on its piece, by PJRT."""
    verify(program)
    module = lower(LocalProgram(program, mesh, (), ()))
    here = devices()[: mesh.size]
    (out,) = program.out_types
    launch = launcher(compile_text(module.text, here), [result_handler(out.shape, out.dtype, here)])
    (result,) = launch([put(pieces, here, here)] if pieces else [])
    return shards_to_numpy(result)


@pytest.mark.parametrize(
    ("op", "shape", "along"),
    [
        (AllGather(1, ("a",), 8), (4, 8), "all_gather_dim = 0"),
        (ReduceScatter(1, ("a",), 8, SUM), (4, 8), "scatter_dimension = 0"),
        (AllToAll(0, 1, ("a",), 8), (8, 4), "split_dimension = 0 : i64, concat_dimension = 0"),
        (AllToAll(1, 0, ("a",), 8), (1, 8), "split_dimension = 0 : i64, concat_dimension = 0"),
    ],
    ids=str,
)
def test_pieces_are_contiguous_where_they_are_sent(op, shape, along):
    program = one_op(op, [ArrayType(shape, np.float32)])
    assert along in lower(LocalProgram(program, MESHES[0], (), ())).text


def test_every_collective_has_cases():
    tested = {op.name for _, op, _ in cases()}
    # call_once runs what the user says: see tests/api/test_callback.py
    assert tested == {name for name, op in Op.registry.items() if issubclass(op, Collective)} - {"call_once"}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_collectives_read_back_from_text(mesh):
    for op in collectives(mesh):
        types = [] if isinstance(op, DeviceIndex) else [ArrayType(PIECE, np.float32)]
        program = one_op(op, types)
        assert parse_program(str(program)) == program


def whole_and_pieces(mesh: AbstractMesh, axes: tuple[str, ...]) -> tuple[NumpyArray, list[NumpyArray]]:
    """An array, and its blocks along dim 0 in the order that its axes give, counted by hand."""
    whole = np.arange(mesh.size * 6, dtype=np.float32).reshape(mesh.size, 6)
    places = [dict(zip(mesh.axis_names, index, strict=True)) for index in np.ndindex(mesh.axis_sizes)]
    pieces = []
    for place in places:
        number = 0
        for axis in axes:
            number = number * mesh.shape[axis] + place[axis]
        rows = mesh.size // mesh.extent(axes)
        pieces.append(whole[number * rows : (number + 1) * rows])
    return whole, pieces


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gathering_the_blocks_of_an_array_gives_the_array(mesh):
    for axes in axes_of(mesh):
        whole, pieces = whole_and_pieces(mesh, axes)
        for piece in AllGather(0, axes, mesh.extent(axes)).exchange(mesh, pieces):
            np.testing.assert_array_equal(piece, whole)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_own_blocks_of_an_array_are_its_pieces(mesh):
    for axes in axes_of(mesh):
        whole, pieces = whole_and_pieces(mesh, axes)
        found = LocalSlice(0, axes, mesh.extent(axes)).exchange(mesh, [whole] * mesh.size)
        np.testing.assert_array_equal(found, pieces)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_permute_renumbers_the_blocks_and_nobody_sends_twice(mesh):
    for before, after in permutes(mesh, axes_of(mesh)):
        _, pieces = whole_and_pieces(mesh, before)
        _, wanted = whole_and_pieces(mesh, after)
        permute = Permute(before, after)
        np.testing.assert_array_equal(permute.exchange(mesh, pieces), wanted)
        assert sorted(source for source, _ in permute.pairs(mesh)) == list(range(mesh.size))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_scattering_a_sum_is_its_own_block_of_the_reduced_whole(mesh):
    pieces = pieces_of(mesh, np.dtype(np.int32))
    for axes in axes_of(mesh):
        count = mesh.extent(axes)
        scattered = ReduceScatter(0, axes, count, SUM).exchange(mesh, pieces)
        reduced = LocalSlice(0, axes, count).exchange(mesh, AllReduce(axes, SUM).exchange(mesh, pieces))
        np.testing.assert_array_equal(scattered, reduced)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_all_to_all_moves_the_cut_from_one_dim_to_another(mesh):
    for axes in axes_of(mesh):
        count = mesh.extent(axes)
        whole = np.arange(64 * 8).reshape(8, 8, 8)
        rows = LocalSlice(0, axes, count).exchange(mesh, [whole] * mesh.size)
        columns = LocalSlice(2, axes, count).exchange(mesh, [whole] * mesh.size)
        np.testing.assert_array_equal(AllToAll(2, 0, axes, count).exchange(mesh, rows), columns)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_only_first_is_a_sum_of_one_term(mesh):
    whole = np.arange(6, dtype=np.float32)
    for axes in axes_of(mesh):
        terms = ToPartial(axes).exchange(mesh, [whole] * mesh.size)
        for total in AllReduce(axes, SUM).exchange(mesh, terms):
            np.testing.assert_array_equal(total, whole)


def test_only_first_leaves_no_nan_on_the_others():
    mesh = AbstractMesh((8,), ("a",))
    pieces = [np.full(2, np.nan, np.float32)] * 8
    found = run(alone(ToPartial(("a",)), pieces), mesh, pieces)
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], np.zeros((7, 2)))


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f8_e4m3fn"])
@pytest.mark.parametrize("op", [AllReduce(("b",), MAX), ReduceScatter(0, ("b",), 2, MIN)], ids=str)
def test_a_maximum_of_nan_is_nan(op, name):
    mesh = AbstractMesh((4, 2), ("a", "b"))
    values = special_values(SHORT_NAMES[name])
    count = len(values)
    pair = [np.resize(digits, 2 * count**2) for digits in (np.repeat(values, count), np.tile(values, count))]
    found, expected = (
        np.array(z, float) for z in (run(alone(op, pair * 4), mesh, pair * 4), op.exchange(mesh, pair * 4))
    )
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reduction", [MAX, MIN], ids=str)
def test_complex_numbers_have_no_maximum(reduction):
    with pytest.raises(TypeError, match=f"all_reduce: complex numbers have no {reduction}: c64\\[3\\]"):
        AllReduce(("a",), reduction).out_type(ArrayType((3,), np.complex64))


def test_sums_wrap_around():
    mesh = AbstractMesh((8,), ("a",))
    op = AllReduce(("a",), SUM)
    pieces = [np.array([200 + device], np.uint8) for device in range(8)]
    expected = [[(8 * 200 + 28) % 256]] * 8
    np.testing.assert_array_equal(run(alone(op, pieces), mesh, pieces), expected)
    np.testing.assert_array_equal(op.exchange(mesh, pieces), expected)


@pytest.mark.parametrize(
    ("op", "sent"),
    [
        (AllReduce(("a", "b"), SUM), 2 * 7 / 8),
        (AllReduce(("b",), SUM), 2 * 1 / 2),
        (AllGather(0, ("a",), 4), 3),
        (ReduceScatter(0, ("a",), 4, SUM), 3 / 4),
        (AllToAll(0, 1, ("a", "b"), 8), 7 / 8),
        (Permute(("a",), ("a",)), 1),
        (CoarseningPermute(("a",), ("b",), 2), 1),
        (LocalSlice(0, ("a",), 4), 0),
        (ToPartial(("a",)), 0),
        (PadOrTrim(0, 9), 0),
    ],
    ids=str,
)
def test_bytes_that_one_device_sends(op, sent):
    """The parts of its piece that a device sends on a ring, as the cost model counts them."""
    piece = ArrayType((8, 8), np.float32)
    assert op.bytes_sent(piece, AbstractMesh((4, 2), ("a", "b"))) == pytest.approx(sent * 256)


@pytest.mark.parametrize(
    "op", [ReduceScatter(0, ("a",), 4, SUM), AllToAll(0, 1, ("a",), 4), LocalSlice(0, ("a",), 4)], ids=str
)
def test_blocks_must_divide_the_piece(op):
    with pytest.raises(TypeError, match=r"dim 0 of f32\[6,8\] does not divide into 4 blocks"):
        op.out_type(ArrayType((6, 8), np.float32))


def test_a_collective_has_no_meaning_on_one_piece():
    with pytest.raises(MissingRuleError, match=r"op 'all_reduce' has no rule 'reference': write AllReduce\.reference"):
        AllReduce(("a",), SUM).reference(np.zeros(3))


def test_steps_in_one_program():
    """Each step takes the result of the one before."""
    mesh = AbstractMesh((4, 2), ("a", "b"))
    steps = [AllReduce(("b",), SUM), LocalSlice(0, ("a",), 4), Permute(("a", "b"), ("b", "a")), AllGather(0, ("a",), 4)]
    pieces = [np.full((4, 2), device, np.int32) for device in range(8)]
    expected: Sequence[NumpyArray] = pieces
    for op in steps:
        expected = op.exchange(mesh, expected)

    def body(x):
        for op in steps:
            x = op(x)
        return [x]

    found = run(rewrite("steps", [ArrayType((4, 2), np.int32)], body), mesh, pieces)
    np.testing.assert_array_equal(found, expected)
