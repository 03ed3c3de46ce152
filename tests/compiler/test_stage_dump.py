"""The dump of a compilation: its stages, passes that change nothing, and that nothing is kept unless requested."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.pipeline import SIMPLIFICATIONS, simplify
from shardwise.compiler.stage_dump import StageDump
from shardwise.execute.request import partition_request
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SIMPLIFIED = ["trace", *(simplification.__name__ for simplification in SIMPLIFICATIONS), "erase_shardings"]


def step(x, key):
    """A call, random bits, and a result that is not used."""
    jnp.sin(x)
    return sw.jit(jnp.cos)(x) + sw.random.normal(key, x.shape)


def traced(function, *args):
    request, _ = sw.jit(function).request(args, {})
    return request


@pytest.fixture
def rows(mesh):
    return sw.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))


def dumped(request):
    dump = StageDump()
    stages, _ = partition_request(request, request.target(), dump=dump)
    return dict(dump.texts()), stages


def test_every_pass_is_recorded_in_order(rows):
    texts, stages = dumped(traced(lambda x: x.sum(), rows))
    searches = ["narrow_gathers", "move_exchanges"]
    assert list(texts) == [*SIMPLIFIED, "layout_problem", "choose", "partition", *searches, "lower"]
    assert texts["layout_problem"].startswith(str(stages.problem))
    assert texts["choose"] == str(stages.plan)
    assert texts["partition"] == str(stages.local)
    assert texts["lower"] == stages.module.text.rstrip("\n")


def test_a_stage_is_the_result_of_its_pass(rows):
    texts, _ = dumped(traced(step, rows, sw.random.key(0)))
    assert "call" in texts["trace"] and "sin" in texts["trace"]
    assert "call" not in texts["inline"] and "key<" in texts["inline"]
    assert "key<" not in texts["lower_keys"] and "sin" in texts["lower_keys"]
    assert "sin" not in texts["dce"]
    assert parse_program(texts["dce"])


def test_an_unchanged_stage_names_the_last_change(rows):
    texts, _ = dumped(traced(lambda x: x.sum(), rows))
    assert {texts[name] for name in SIMPLIFIED[1:]} == {"(unchanged since trace)"}
    assert texts["move_exchanges"] == "(unchanged since partition)"


def test_candidates_are_listed_for_each_axis_and_planned_equation(rows):
    texts, _ = dumped(traced(lambda x: jnp.exp(x).sum(0), rows))
    lines = texts["layout_problem"].splitlines()
    start = lines.index("candidates along 'data' {")
    assert lines[start + 1] == "  exp: replicated -> replicated | 0 -> 0"
    assert lines[start + 2].startswith("  sum: replicated -> replicated | 0 -> sum")
    assert "candidates along 'model' {" in lines


def test_a_search_that_finds_a_better_plan_shows_plan_and_local_program():
    mesh = sw.make_mesh((2, 2), ("a", "b"), devices=sw.devices()[:4])
    x, y = (sw.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, spec)) for spec in (P("b"), P(None, "b")))
    request, _ = sw.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P("a"))).request((x, y), {})
    with sw.config.override("improve_plans", True):
        texts, stages = dumped(request)
    assert texts["improve"] == f"{stages.plan}\n{stages.local}"
    assert texts["choose"] != str(stages.plan) and texts["partition"] != str(stages.local)


def test_a_record_that_keeps_nothing_is_empty(rows):
    dump = StageDump(keeps=False)
    simplify(traced(step, rows, sw.random.key(0)).program, dump)
    assert str(dump) == ""


def test_without_a_request_nothing_is_recorded(rows, monkeypatch):
    kept = []
    monkeypatch.setattr(StageDump, "add", lambda dump, name, stage: kept.append(dump._keeps))
    request = traced(lambda x: x.sum(), rows)
    partition_request(request, request.target())
    assert kept and not any(kept)
