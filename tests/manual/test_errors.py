"""Errors of shard_map and of collectives: each says what is wrong, where, why, and what to write instead."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.types import explain_marks
from shardwise.errors import DeviceMismatchError, ShardingError, UnboundAxisError, UnexpectedTracerError
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(scope="module")
def mesh():
    return sw.make_mesh((4, 2), ("x", "y"))


def message_of(error, f, in_specs, out_specs, *args, **options):
    """Return the error message of `shard_map(f)`, with LINE for the file and line.

    The explanation of types such as `f32[2,4]{V:x}` at its end is checked and removed.
    """
    with pytest.raises(error) as caught:
        sw.shard_map(f, in_specs=in_specs, out_specs=out_specs, **options)(*(args or (X,)))
    assert type(caught.value) is error
    text = re.sub(r"test_errors\.py:\d+", "LINE", str(caught.value))
    explanation = explain_marks(text)
    assert text.endswith(explanation)
    return text.removesuffix(explanation)


def same(x):
    return x


# Names.


@pytest.mark.parametrize(
    "use",
    [
        lambda x: lax.psum(x, "z"),
        lambda x: lax.pmax(x, ("x", "z")),
        lambda x: lax.all_gather(x, "z"),
        lambda x: lax.ppermute(x, "z", []),
        lambda x: lax.all_to_all(x, ("z", "y"), 0, 0),
        lambda x: x + lax.axis_index("z"),
        lambda x: lax.pvary(x, "z"),
    ],
    ids=["psum", "pmax", "all_gather", "ppermute", "all_to_all", "axis_index", "pvary"],
)
def test_unbound_axis_name(mesh, use):
    assert message_of(UnboundAxisError, use, P("x"), P("x"), mesh=mesh) == (
        "unbound axis name 'z'. The bound names are: 'x', 'y'. `vmap(fun, axis_name='z')` binds a name in `fun`, "
        "and shard_map binds the axes of its mesh."
    )


def test_misspelt_axis_name():
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    text = message_of(UnboundAxisError, lambda x: lax.psum(x, "modle"), P("data"), P("data"), mesh=mesh)
    assert text.startswith("unbound axis name 'modle'. Did you mean 'model'? The bound names are: 'data', 'model'.")


def test_wrong_number_of_arguments(mesh):
    def add(x, y):
        return x + y

    for in_specs in (P("x"), (P("x"), P("x"))):
        assert message_of(TypeError, add, in_specs, P("x"), mesh=mesh) == (
            "shard_map of `add` (LINE) is called with 1 argument, which `add` does not accept: missing a required "
            "argument: 'y'. Pass one array, and one entry of in_specs, for each of its parameters."
        )
    assert message_of(ValueError, add, (P("x"),), P("x"), X, X, mesh=mesh) == (
        "shard_map of `add` (LINE) is called with 2 arguments, but in_specs has 1 entry: in_specs must be a tuple with "
        "one entry per positional argument, or a single entry for all of them."
    )


def test_automatic_axes_are_not_bound_inside(mesh):
    text = message_of(UnboundAxisError, lambda x: lax.psum(x, "y"), P("x"), P("x"), mesh=mesh, axis_names={"x"})
    assert text.startswith("unbound axis name 'y'. The bound names are: 'x'.")


def test_repeated_axis_name(mesh):
    text = message_of(ValueError, lambda x: lax.psum(x, ("x", "x")), P("x"), P(), mesh=mesh)
    assert text == "psum: an axis name repeats in ('x', 'x')"


# Specs.


def test_specs_that_do_not_fit_their_arrays(mesh):
    where = "shard_map: in_specs for `x` of `same` (LINE), f32[8,4]"
    assert message_of(ShardingError, same, P("x", None, "y"), P(), mesh=mesh) == (
        f"{where}: P('x', None, 'y') has 3 entries, but the array has rank 2 (shape (8, 4)). Remove 1: a spec has at "
        "most one entry per dim."
    )
    assert message_of(ShardingError, same, P("z"), P(), mesh=mesh) == (
        f"{where}: P('z'): the mesh x=4, y=2 has no axis 'z'. Its axes are 'x', 'y'."
    )
    assert message_of(ShardingError, same, P("x", "x"), P(), mesh=mesh) == (
        f"{where}: P('x', 'x') uses axis 'x' for dim 0 and for dim 1: an axis can shard one dim only."
    )
    assert message_of(ShardingError, same, P(None, P.UNCONSTRAINED), P(), mesh=mesh) == (
        f"{where}: P(None, UNCONSTRAINED) has UNCONSTRAINED for dim 1, but the shapes of shards must be known here: "
        "name the mesh axes of the dim, or use None."
    )
    assert message_of(ShardingError, lambda t: t["a"], P("x"), P("xy"), {"a": X}, mesh=mesh) == (
        "shard_map: out_specs for result 0 of `<lambda>` (LINE), f32[2,4]{V:x}: P('xy'): the mesh x=4, y=2 has no axis "
        "'xy'. Did you mean 'y'?"
    )


def test_trailing_nones_of_a_spec_are_ignored(mesh):
    region = sw.shard_map(same, mesh=mesh, in_specs=P("x", None, None), out_specs=P("x", None, None))
    np.testing.assert_array_equal(region(X), X)


def test_out_specs_for_a_dim_that_results_do_not_have(mesh):
    assert message_of(ShardingError, lambda x: {"loss": x.sum()}, P("x"), P("x"), mesh=mesh) == (
        "shard_map: out_specs for result ['loss'] of `<lambda>` (LINE), f32[]{V:x}: P('x') concatenates the "
        "shards along dim 0, but they have rank 0. Add that dim, for example with `numpy.expand_dims(…, 0)`; or reduce "
        "the result, for example with `lax.psum`, and use P()."
    )
    region = sw.shard_map(lambda x: jnp.expand_dims(x.sum(), 0), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_array_equal(region(X), X.reshape(4, 8).sum(1))


def test_specs_with_axes_that_are_not_manual(mesh):
    tail = (
        "uses 'y', which is not a manual axis; the manual axes are 'x'. Remove it from the spec, as the planner shards "
        "arrays along the other axes; or add it to axis_names."
    )
    assert message_of(ShardingError, same, P("x", "y"), P("x"), mesh=mesh, axis_names={"x"}) == (
        f"shard_map: in_specs for `x` of `same` (LINE) {tail}"
    )
    assert message_of(ShardingError, same, P("x"), P("x", "y"), mesh=mesh, axis_names={"x"}) == (
        f"shard_map: out_specs for result 0 of `same` (LINE) {tail}"
    )
    assert message_of(ShardingError, same, P("x"), P("x"), mesh=mesh, axis_names={"z"}) == (
        "shard_map of `same` (LINE): axis_names has 'z', but the mesh x=4, y=2 has no axis 'z'. Its axes are 'x', 'y'."
    )


def test_specs_that_are_not_a_prefix(mesh):
    def said(f, in_specs, out_specs, *args):
        text = message_of(ValueError, f, in_specs, out_specs, *args, mesh=mesh)
        return text.partition("\n  ")[2]

    assert said(lambda t: t["a"], ({"b": P("x")},), P("x"), {"a": X}) == (
        "in_specs[0]: dict with keys {'b'} against dict with keys {'a'} in the arguments: missing 'a', unexpected 'b'"
    )
    assert said(lambda x: (x, x), P("x"), (P("x"),)) == (
        "out_specs: tuple of length 1 against tuple of length 2 in the results"
    )
    assert said(same, P("x"), (P("x"), P())) == "out_specs: tuple of length 2 against one array in the results"
    assert said(lambda x: (x, x), P("x"), (P("x"), None)) == (
        "out_specs[1]: None against one array in the results. Use P() for a result that is replicated."
    )


def test_specs_that_are_not_partition_specs(mesh):
    head = "shard_map of `same` (LINE)"
    assert message_of(TypeError, same, "x", P("x"), mesh=mesh) == (
        f"{head}: in_specs must hold PartitionSpecs, not 'x'. Write P('x')."
    )
    assert message_of(TypeError, same, P("x"), ["y"], mesh=mesh) == (
        f"{head}: out_specs must hold PartitionSpecs, not 'y'. Write P('y')."
    )
    assert (
        message_of(TypeError, same, ({"a": 3},), P(), mesh=mesh) == f"{head}: in_specs must hold PartitionSpecs, not 3."
    )


def test_missing_in_specs_need_sharded_arguments(mesh):
    for wrap in (same, sw.jit):
        with pytest.raises(
            ValueError, match=r"in_specs cannot be inferred, because `x` has no NamedSharding on the mesh"
        ):
            wrap(sw.shard_map(same, mesh=mesh, out_specs=P("x")))(X)


# Meshes and devices.


def test_no_mesh():
    assert message_of(ValueError, same, P("x"), P("x")) == (
        "shard_map of `same` (LINE) needs a mesh: pass `mesh=`, or set one with `with mesh:` or `set_mesh(mesh)`"
    )
    assert message_of(TypeError, same, P("x"), P("x"), mesh=8) == (
        "shard_map of `same` (LINE): mesh must be a Mesh or an AbstractMesh, not 8"
    )


def test_arguments_on_other_devices(mesh):
    two = sw.make_mesh((2,), ("x",), devices=sw.devices()[:2])
    elsewhere = sw.device_put(X, NamedSharding(two, P("x")))
    assert message_of(DeviceMismatchError, same, P("x"), P("x"), elsewhere, mesh=mesh) == (
        "shard_map of `same` (LINE): `x` has NamedSharding(mesh(x=2), P('x')), whose devices are not those of the mesh "
        "Mesh(x=4, y=2). Move it with `device_put` first."
    )


def test_nested_regions_with_the_same_axis(mesh):
    def inner(**options):
        region = sw.shard_map(same, mesh=mesh, in_specs=P(), out_specs=P(), **options)
        return lambda x: 2 * region(x)

    assert message_of(ShardingError, inner(axis_names={"x"}), P("x"), P("x"), mesh=mesh) == (
        "shard_map of `same` (LINE): 'x' is already a manual axis of an enclosing shard_map"
    )
    assert message_of(ShardingError, inner(), P("x"), P("x"), mesh=mesh) == (
        "shard_map of `same` (LINE): all axes of the mesh x=4, y=2 are already manual in an enclosing shard_map"
    )


def test_constraint_along_a_manual_axis(mesh):
    def body(x):
        return lax.with_sharding_constraint(x, P("x"))

    assert message_of(ShardingError, body, P("x"), P("x"), mesh=mesh) == (
        "with_sharding_constraint: P('x', None) uses 'x', which is a manual axis of the enclosing shard_map: values "
        "inside are shards along that axis already. Use only the other axes."
    )


# Arguments and results.


def test_dims_that_do_not_divide(mesh):
    def halves(x):
        return x[::2]

    assert message_of(ValueError, halves, P(("x", "y")), P("x"), X[:6], mesh=mesh) == (
        "shard_map of `halves` (LINE): dim 0 of `x`, f32[6,4], has size 6, which is not divisible by 8, the number of "
        "shards (x=4 × y=2).\n"
        "  All shards must have the same shape. Pad the dim to 8, for example with `numpy.pad`, and make `halves` "
        "ignore the 2 added elements; or use jit, which supports uneven sharding."
    )


def test_arguments_and_results_that_are_not_arrays(mesh):
    assert message_of(TypeError, lambda x: (x, "a"), P("x"), P("x"), mesh=mesh) == (
        "`<lambda>` (LINE) returned 'a' of type str as result 1: a traced function must return a pytree of arrays and "
        "numbers"
    )
    assert message_of(TypeError, same, P("x"), P("x"), "abc", mesh=mesh) == (
        "argument `x` of `same` (LINE) is 'abc' of type str: the arguments of a traced function must be pytrees of "
        "arrays and numbers.\n  If it is a setting, make the argument static with static_argnames='x' of jit, or bind "
        "it with `functools.partial`."
    )
    with pytest.raises(TypeError, match="shard_map needs a function, not 3"):
        sw.shard_map(3, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(
        TypeError,
        match=r"accepts positional arguments only, as in_specs has one entry per position: pass 'x' by position",
    ):
        sw.shard_map(same, mesh=mesh, in_specs=P(), out_specs=P())(x=X)


def test_leaked_shard(mesh):
    kept = []
    sw.shard_map(lambda x: kept.append(x) or x, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(X)
    with pytest.raises(UnexpectedTracerError, match=r"a traced f32\[2,4\]\{V:x\} of `<lambda>` is used after"):
        kept[0] + 1


# Replication that out_specs claim and types do not prove.


def test_wrong_examples_of_the_documentation(mesh):
    """Seed 001: each device sums its own columns, and out_specs claim that the result is replicated along them."""

    def sharded_fn(x_shard):
        return x_shard.sum(axis=1)

    def local_reduce(x_shard):
        return x_shard.sum(axis=1)

    for f, out_specs in ((sharded_fn, P("x", None)), (local_reduce, P("x"))):
        assert message_of(ShardingError, f, P("x", "y"), out_specs, mesh=mesh) == (
            f"shard_map of `{f.__name__}` (LINE): out_specs=P('x') requires result 0 to be replicated along 'y', "
            "but it may vary there: it is f32[2]{V:(x,y)}, computed at LINE.\n"
            "  To fix it, reduce it, for example with `lax.psum(…, 'y')`, or concatenate the shards with "
            "out_specs=P(('x', 'y')). If the result is replicated although this cannot be inferred, check_vma=False "
            "turns the check off."
        )
    fixed = sw.shard_map(
        lambda x: lax.psum(x.sum(axis=1), "y"), mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", None)
    )
    np.testing.assert_array_equal(fixed(X), X.sum(1))
    joined = sw.shard_map(sharded_fn, mesh=mesh, in_specs=P("x", "y"), out_specs=P(("x", "y")))
    np.testing.assert_array_equal(joined(X), X.reshape(8, 2, 2).sum(2).reshape(4, 2, 2).transpose(0, 2, 1).ravel())


@pytest.mark.parametrize(
    "f",
    [
        same,
        lambda x: lax.psum(x, "x"),
        lambda x: lax.ppermute(lax.psum(x, "x"), "y", [(0, 1), (1, 0)]),
        lambda x: lax.psum(x, ("x", "y")) + lax.axis_index("y"),
        lambda x: lax.psum(x, ("x", "y"), axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),
        lambda x: lax.all_gather(x, "y", axis_index_groups=[[0], [1]]),
        lambda x: lax.psum_scatter(lax.psum(x, ("x", "y")), "y", scatter_dimension=1, tiled=True),
        lambda x: lax.scan(lambda c, _: (c + lax.axis_index("y"), None), lax.psum(x, ("x", "y")), None, length=2)[0],
        lambda x: lax.cond(lax.axis_index("y") > 0, lambda: jnp.ones(2), lambda: jnp.zeros(2)),
        lambda x: lax.while_loop(lambda c: c < lax.axis_index("y"), lambda c: c + 1, 0),
        lambda x: lax.fori_loop(0, lax.axis_index("y"), lambda _, c: c + 1, 0),
    ],
    ids=["itself", "psum", "ppermute", "index", "groups", "gather", "scatter", "loop", "branch", "while", "fori"],
)
def test_varying_values_are_not_taken_for_replicated(mesh, f):
    text = message_of(ShardingError, f, P(("x", "y")), P(), mesh=mesh)
    assert "to be replicated along" in text and "'y'" in text.partition(", but")[0]
    sw.eval_shape(sw.shard_map(f, mesh=mesh, in_specs=P(("x", "y")), out_specs=P(), check_vma=False), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.psum(x, ("x", "y")),
        lambda x: lax.pmax(lax.psum(x, "x"), "y") * 2,
        lambda x: lax.all_gather(lax.all_gather(x, "x"), "y").sum(0),
        lambda x: lax.all_gather(x, ("y", "x"), tiled=True)[::2],
        lambda x: lax.all_gather(x, ("y", "x"), to="invarying"),
        lambda x: lax.scan(lambda c, _: (c + lax.psum(x, ("x", "y")), None), jnp.zeros((1, 4)), None, length=2)[0],
        lambda x: lax.cond(lax.psum(x.sum(), ("x", "y")) > 0, lambda: jnp.ones(2), lambda: jnp.zeros(2)),
        lambda x: lax.pbroadcast(x, ("x", "y"), 3),
        lambda x: jnp.ones(3),
        lambda x: lax.pvary(lax.psum(x, ("x", "y")), "y"),
    ],
    ids=["psum", "pmax", "gathers", "gather", "invarying", "loop", "branch", "broadcast", "constant", "pvary"],
)
def test_replicated_values_are_known_to_be_replicated(mesh, f):
    sw.eval_shape(sw.shard_map(f, mesh=mesh, in_specs=P(("x", "y")), out_specs=P()), X)


# Collectives.

WRONG = {
    "receives twice": (
        lambda x: lax.ppermute(x, "x", [(0, 1), (2, 1)]),
        "ppermute: a destination repeats in [(0, 1), (2, 1)]; each member may send and receive only once",
    ),
    "sends twice": (
        lambda x: lax.ppermute(x, ("x", "y"), [(7, 1), (7, 2)]),
        "ppermute: a source repeats in [(7, 1), (7, 2)]; each member may send and receive only once",
    ),
    "no such member": (
        lambda x: lax.ppermute(x, "x", [(0, 4)]),
        "ppermute: perm [(0, 4)] must contain only the members 0 to 3 of 'x'",
    ),
    "no such member of two axes": (
        lambda x: lax.ppermute(x, ("x", "y"), [(0, 8)]),
        "ppermute: perm [(0, 8)] must contain only the members 0 to 7 of ('x', 'y')",
    ),
    "no permutation": (
        lambda x: lax.pshuffle(x, "x", [0, 0, 1, 2]),
        "pshuffle: [0, 0, 1, 2] is not a permutation of the 4 members of 'x'",
    ),
    "overlapping groups": (
        lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1], [1, 2]]),
        "psum: axis_index_groups [[0, 1], [1, 2]] contain member 1 of 'x' 2 times; each member must be in exactly one "
        "group",
    ),
    "groups that leave one out": (
        lambda x: lax.pmax(x, "x", axis_index_groups=[[0, 1]]),
        "pmax: axis_index_groups [[0, 1]] contain member 2 of 'x' 0 times; each member must be in exactly one group",
    ),
    "groups of different sizes": (
        lambda x: lax.all_gather(x, "x", axis_index_groups=[[0, 1, 2], [3]]),
        "all_gather: axis_index_groups [[0, 1, 2], [3]] must all have the same size",
    ),
    "groups with an unknown member": (
        lambda x: lax.all_to_all(x, "x", 0, 0, axis_index_groups=[[0, 1], [2, 4]]),
        "all_to_all: axis_index_groups [[0, 1], [2, 4]] contain 4, but the members of 'x' are 0 to 3",
    ),
    "no such source": (
        lambda x: lax.pbroadcast(x, "x", 9),
        "pbroadcast: source must be one of the members 0 to 3 of 'x', not 9",
    ),
    "no such dim": (
        lambda x: lax.all_gather(x, "x", axis=5),
        "all_gather: axis 5 does not exist in f32[2,4]{V:x} with one more dim",
    ),
    "a dim of the wrong size": (
        lambda x: lax.psum_scatter(x, "x"),
        "psum_scatter: the size of dim 0 of f32[2,4]{V:x} must be 4, the number of members",
    ),
    "a dim that does not divide": (
        lambda x: lax.all_to_all(x, "x", 0, 1, tiled=True),
        "all_to_all: the size of dim 0 of f32[2,4]{V:x} must be a multiple of 4, the number of members",
    ),
    "unknown cast": (
        lambda x: lax.pcast(x, "x", to="same"),
        "pcast: to must be 'varying', 'reduced' or 'unreduced', not 'same'",
    ),
    "unknown gather": (
        lambda x: lax.all_gather(x, "x", to="same"),
        "all_gather: to must be 'varying', 'invarying' or 'reduced', not 'same'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_collectives(mesh, name):
    f, text = WRONG[name]
    assert message_of(ValueError, f, P("x"), P("x"), mesh=mesh) == text


def test_wrong_types_of_perm_and_groups(mesh):
    assert message_of(TypeError, lambda x: lax.ppermute(x, "x", [0, 1]), P("x"), P("x"), mesh=mesh) == (
        "ppermute: perm must be pairs of members such as [(0, 1), (1, 2)], not [0, 1]"
    )
    assert message_of(TypeError, lambda x: lax.psum(x, "x", axis_index_groups=[0, 1]), P("x"), P("x"), mesh=mesh) == (
        "psum: axis_index_groups must be lists of members such as [[0, 1], [2, 3]], not [0, 1]"
    )


def test_collectives_under_varying_control_flow_raise(mesh):
    """Devices that take another branch would never join the collective: a deadlock."""
    tail = (
        "the condition varies along 'x', so devices may take different branches, but named_sum at LINE needs all of "
        "them: the devices that execute it would wait for the others forever. Make the condition the same on all "
        "devices, for example with `lax.pmax`, or move the collective out of the branch or loop."
    )

    def branching(x):
        return lax.cond(x.sum() > 3, lambda x: lax.psum(x, "x"), same, x)

    def looping(x):
        return lax.while_loop(lambda c: c.sum() < 3, lambda c: lax.pmean(c, "x") + 1, x)

    assert message_of(ValueError, branching, P("x"), P("x"), mesh=mesh) == f"cond: {tail}"
    assert message_of(ValueError, looping, P("x"), P("x"), mesh=mesh) == f"while_loop: {tail}"
    sent = sw.shard_map(
        lambda x: lax.cond(lax.pmax(x.sum(), "x") > 3, lambda x: lax.psum(x, "x"), lambda x: lax.pvary(x, "x"), x),
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
    )
    sw.eval_shape(sent, X)
