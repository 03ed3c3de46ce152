"""explain, plans and pages of programs with Explicit axes: types ask for the collectives, and are shown."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import put

X, W = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)
PLANNER_WORDS = ("constrain", "planner", "chosen", "candidate", "layout", "needs P(", "has sharding", "pinned")


def reasons(function, *args):
    """Return the kind of each collective and why it is there. `{n}` is line n of the function."""
    rows = sw.jit(function).lower(*args).plan.collectives
    first = function.__code__.co_firstlineno
    texts = [(row.kind, row.reason) for row in rows]
    for line in range(6):
        place = f"test_explain_explicit_axes.py:{first + line}"
        texts = [(kind, text.replace(place, f"{{{line}}}")) for kind, text in texts]
    assert not [word for _, text in texts for word in PLANNER_WORDS if word in text]
    return sorted(texts)


def sum_then_reshard(x, w):
    y = jnp.dot(x, w, out_sharding=P("X", None))
    z = reshard(jnp.sin(y), P(None, "Y"))
    return z.sum(0), jnp.cumsum(x, 0)


def test_types_ask_for_every_collective(explicit_mesh):
    assert reasons(sum_then_reshard, put(X, "X", "Y"), put(W, "Y", None)) == [
        (
            "all_gather",
            "the type of the result of cumulative at {3}, f32[8@X,4@Y], asks for it: the op needs data from other "
            "shards along 'X'",
        ),
        (
            "all_gather",
            "the type of the result of reshard at {2}, f32[8,6@Y], asks for it: sin at {2} has type f32[8@X,6]",
        ),
        ("all_reduce", "the type of the result of dot at {1}, f32[8@X,6], asks for it: its terms are summed over 'Y'"),
    ]


def scattered(x, w):
    return jnp.dot(x, w, out_sharding=P("X", "Y"))


def test_out_sharding_asks_for_a_scattered_sum(explicit_mesh):
    assert reasons(scattered, put(X, "X", "Y"), put(W, "Y", None)) == [
        (
            "reduce_scatter",
            "the type of the result of reshard at {1}, f32[8@X,6@Y], asks for it: the terms of dot at {1} are summed "
            "over 'Y'",
        )
    ]


def gathered_weights(x, w):
    return x @ w


def test_an_operand_that_one_side_shards_is_gathered(explicit_mesh):
    assert reasons(gathered_weights, put(np.ones((64, 4), np.float32), "X", None), put(W, "X", None)) == [
        ("all_gather", "the type of the result of dot at {1}, f32[64@X,6], asks for it: `w` has type f32[4@X,6]")
    ]


def accumulated(w, batches):
    w = reshard(w, P(reduced={"X"}))
    zeros = jnp.zeros(w.shape, out_sharding=P(unreduced={"X"}))
    total, _ = lax.scan(lambda total, x: (total + sw.grad(lambda w: ((x @ w) ** 2).sum())(w), None), zeros, batches)
    return reshard(total, P())


def test_a_reshard_asks_for_the_sum_of_accumulated_gradients(explicit_mesh):
    batches = np.ones((3, 8, 4), np.float32)
    ((kind, reason),) = reasons(accumulated, put(W), put(batches, None, "X"))
    assert kind == "all_reduce"
    assert reason.startswith("the type of the result of reshard at {4}, f32[4,6], asks for it: the terms of ")
    assert reason.endswith(", which scan at {3} adds up, are summed over 'X'")


def test_the_text_of_a_plan_has_types(explicit_mesh):
    plan = sw.jit(sum_then_reshard).lower(put(X, "X", "Y"), put(W, "Y", None)).plan
    head, *lines = [" ".join(line.split()) for line in str(plan).splitlines()]
    assert head == "sum_then_reshard on mesh X=4 explicit, Y=2 explicit: 3 collectives, 144 B sent per device"
    assert "in `x` f32[8@X,4@Y] P('X', 'Y') 2×2 per device" in lines
    assert "in `w` f32[4@Y,6] P('Y', None) 2×6 per device" in lines
    assert "out `output[0]` f32[6@Y] P('Y') 3 per device" in lines
    assert [(row.op, row.type, row.origin) for row in plan.values] == [
        ("input", "f32[8@X,4@Y]", "input"),
        ("input", "f32[4@Y,6]", "input"),
        ("dot", "f32[8@X,6]", "type"),
        ("sin", "f32[8@X,6]", "type"),
        ("reshard", "f32[8,6@Y]", "type"),
        ("sum", "f32[6@Y]", "type"),
        ("cumulative", "f32[8@X,4@Y]", "type"),
    ]


def test_the_page_of_a_plan_has_types(explicit_mesh):
    page = sw.jit(sum_then_reshard).lower(put(X, "X", "Y"), put(W, "Y", None)).plan.to_html()
    assert "<code>f32[8@X,6]</code>" in page and "<td>its type</td>" in page
    assert "the type of the result of dot at" in page
    assert "pinned:" not in page and "constrain" not in page and ">chosen" not in page


def test_explain_gives_no_advice_that_types_forbid(explicit_mesh, capsys):
    explanation = sw.explain(sum_then_reshard)(put(X, "X", "Y"), put(W, "Y", None))
    text = capsys.readouterr().out
    assert str(explanation) + "\n" == text
    assert "with_sharding_constraint" not in text and "instead of P" not in text


def test_along_auto_axes_the_reasons_are_those_of_layouts():
    mixed = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with sw.set_mesh(mixed):
        rows = sw.jit(lambda x, w: jnp.sin(x @ w).sum(0)).lower(put(X, "X", "Y"), put(W, "Y", None)).plan.collectives
    texts = {row.axes: row.reason for row in rows}
    assert "leaves an unreduced sum over 'Y'" in texts[("Y",)]
    assert texts[("X",)].startswith("the type of the result of sum at ") and "f32[6], asks for it" in texts[("X",)]


def test_programs_show_types_at_every_stage_that_users_print(explicit_mesh):
    args = put(X, "X", "Y"), put(W, "Y", None)
    lowered = sw.jit(sum_then_reshard).lower(*args)
    assert str(lowered) == (
        "<Lowered sum_then_reshard(f32[8@X,4@Y], f32[4@Y,6]) -> (f32[6@Y], f32[8@X,4@Y]) on X=4 explicit, Y=2 explicit>"
    )
    text = str(sw.make_jaxpr(sum_then_reshard)(*args))
    assert "c: f32[8@X,6] = dot[" in text and "e: f32[8,6@Y] = reshard[" in text
    assert [str(info.sharding.spec) for info in lowered.out_info] == ["P('Y')", "P('X', 'Y')"]


def test_explicit_programs_are_explained_on_abstract_meshes():
    abstract = AbstractMesh((64, 8), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
    x = sw.ShapeDtypeStruct((128, 32), jnp.float32, sharding=NamedSharding(abstract, P("X", "Y")))
    plan = sw.jit(lambda x: (x * 2).sum(1)).lower(x).plan
    (row,) = plan.collectives
    assert (row.kind, row.axes) == ("all_reduce", ("Y",))
    assert row.reason.endswith("f32[128@X], asks for it: its terms are summed over 'Y'")
    assert plan.outputs[0].type == "f32[128@X]"


def test_shardings_inside_a_function_are_those_of_types(explicit_mesh, capsys):
    seen = []

    def f(x):
        y = jnp.sin(x)
        sw.debug.inspect_array_sharding(y, callback=seen.append)
        sw.debug.visualize_array_sharding(y, use_color=False)
        return y

    sw.jit(f)(put(X, "X", None))
    assert [sharding.spec for sharding in seen] == [P("X")]
    boxes = [line.strip("│") for line in capsys.readouterr().out.splitlines() if "CPU" in line]
    assert [box.split() for box in boxes] == [["CPU", f"{n},{n + 1}"] for n in (0, 2, 4, 6)]
