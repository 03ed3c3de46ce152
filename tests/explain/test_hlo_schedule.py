"""Schedules of hand-written modules, compared with times worked out by hand, and of recorded ones."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.traffic import all_gather, all_reduce
from shardwise.explain.hlo_schedule import read_schedule
from shardwise.explain.hlo_wire import wire

H200 = chip("h200")
SHARD = 1 << 20
GATHER = H200.ring_of(range(8)).time(all_gather(4 * SHARD, 8))
REDUCE = H200.ring_of(range(8)).time(all_reduce(4 * SHARD, 8))
COPY = H200.memory_time(2 * 64 * SHARD)  # of 16M floats

START = "(f32[1048576]{0}, f32[8388608]{0}) all-gather-start(%p), replica_groups=[1,8]<=[8], dimensions={0}"
DONE = "f32[8388608]{0} all-gather-done"
BIG = "f32[16777216]{0}"


def module(*lines, before="", header="is_scheduled=true, replica_count=8"):
    body = "\n".join(f"  {line}" for line in ("%p = f32[1048576]{0} parameter(0)", f"%x = {BIG} parameter(1)", *lines))
    return f"HloModule m, {header}\n{before}\nENTRY %main (p: f32[1048576], x: {BIG}) -> f32[] {{\n{body}\n}}\n"


ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def test_a_collective_beside_a_long_kernel_is_hidden():
    schedule = read_schedule(module(f"%s = {START}", f"%c = {BIG} copy(%x)", f"%d = {DONE}(%s)"), H200)
    (launch,) = schedule.launches
    assert COPY < GATHER  # so that a part is exposed
    assert launch.exposed == pytest.approx(GATHER - COPY)
    assert (launch.seconds, launch.beside, launch.operands) == (GATHER, pytest.approx(COPY), 1)
    assert schedule.compute_seconds == pytest.approx(COPY)
    assert schedule.seconds == pytest.approx(GATHER)
    hidden = [f"%c{n} = {BIG} copy(%x)" for n in range(20)]
    assert read_schedule(module(f"%s = {START}", *hidden, f"%d = {DONE}(%s)"), H200).exposed_seconds == 0


def test_a_synchronous_collective_is_exposed():
    line = "%r = f32[1048576]{0} all-reduce(%p), replica_groups=[1,8]<=[8], to_apply=%add"
    schedule = read_schedule(module(line, before=ADD), H200)
    assert schedule.exposed_seconds == schedule.communication_seconds == schedule.seconds == REDUCE
    assert schedule.counts() == {"all-reduce": 1}


def test_links_run_one_collective_at_a_time():
    schedule = read_schedule(
        module(f"%s1 = {START}", f"%s2 = {START}", f"%c = {BIG} copy(%x)", f"%d1 = {DONE}(%s1)", f"%d2 = {DONE}(%s2)"),
        H200,
    )
    first, second = schedule.launches
    assert first.exposed == pytest.approx(GATHER - COPY)
    assert second.exposed == pytest.approx(GATHER)


LOOP = f"""
%body (t: (f32[1048576], {BIG})) -> (f32[1048576], {BIG}) {{
  %t = (f32[1048576]{{0}}, {BIG}) parameter(0)
  %p = f32[1048576]{{0}} get-tuple-element(%t), index=0
  %x = {BIG} get-tuple-element(%t), index=1
  %s = {START}
  %c = {BIG} copy(%x)
  %d = {DONE}(%s)
  ROOT %r = (f32[1048576]{{0}}, {BIG}) tuple(%p, %c)
}}

%condition (t: (f32[1048576], {BIG})) -> pred[] {{
  %t = (f32[1048576]{{0}}, {BIG}) parameter(0)
  ROOT %yes = pred[] constant(true)
}}
"""


@pytest.mark.parametrize(("config", "trips"), [(', backend_config={"known_trip_count":{"n":"5"}}', 5), ("", 1)])
def test_a_loop_runs_its_body(config, trips):
    loop = f"%w = (f32[1048576]{{0}}, {BIG}) while(%t), condition=%condition, body=%body{config}"
    schedule = read_schedule(module(f"%t = (f32[1048576]{{0}}, {BIG}) tuple(%p, %x)", loop, before=LOOP), H200)
    (launch,) = schedule.launches
    assert launch.times == trips
    assert schedule.counts() == {"all-gather": trips}
    assert schedule.seconds == pytest.approx(trips * GATHER)


def test_an_asynchronous_call_of_a_collective_is_the_collective():
    before = """
%wrapped (q: f32[1048576]) -> f32[8388608] {
  %q = f32[1048576]{0} parameter(0)
  ROOT %g = f32[8388608]{0} all-gather(%q), replica_groups=[1,8]<=[8], dimensions={0}
}
"""
    start = "%s = ((f32[1048576]{0}), f32[8388608]{0}, s32[]) async-start(%p), calls=%wrapped"
    schedule = read_schedule(
        module(start, f"%c = {BIG} copy(%x)", "%d = f32[8388608]{0} async-done(%s)", before=before), H200
    )
    assert schedule.exposed_seconds == pytest.approx(GATHER - COPY)


def test_a_module_that_is_not_scheduled_is_an_error():
    with pytest.raises(ValueError, match="the module is not scheduled"):
        read_schedule(module(header="replica_count=8"), H200)


# Compiled for four hosts of 8 H200s by jaxlib 0.11.2: eight scanned layers of a transformer, fully sharded
# (`benchmarks/gpu_schedule.py`).
RECORDED = Path(__file__).parent / "recorded"
LAYERS, DEVICES = 8, 32


def recorded(file):
    return gzip.decompress((RECORDED / f"fsdp_scanned_{file}.hlo.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("file", "launches", "exposed"),
    [
        ("jax", {"all-gather": 139, "all-reduce": 1, "all-to-all": 170, "reduce-scatter": 9}, 149.31e-3),
        ("ours", {"all-gather": 17, "all-reduce": 1, "all-to-all": 4, "reduce-scatter": 5}, 4.74e-3),
    ],
)
def test_recorded_modules(file, launches, exposed):
    text = recorded(file)
    schedule = read_schedule(text, H200)
    assert schedule.counts() == launches == wire(text).kinds()
    assert sum(each.times * each.collective.sent for each in schedule.launches) == wire(text).sent
    assert schedule.exposed_seconds == pytest.approx(exposed, rel=1e-3)
    assert schedule.communication_seconds == pytest.approx(
        sum(each.times * H200.ring_of(range(DEVICES)).time(each.traffic) for each in wire(text).collectives)
    )
    assert all(0 <= each.exposed <= schedule.communication_seconds for each in schedule.launches)


def test_a_scanned_layer_has_two_launches_of_gathers_and_one_of_reductions():
    launches = read_schedule(recorded("ours"), H200).launches
    of_layers = Counter()
    for launch in launches:
        if launch.operands > 1:  # those of the ends are alone
            of_layers[launch.collective.kind] += launch.times
    assert LAYERS < of_layers["all-gather"] <= 2 * LAYERS
    assert 0 < of_layers["reduce-scatter"] <= LAYERS
    gathers = [launch for launch in launches if launch.collective.kind == "all-gather" and launch.operands > 1]
    assert sum(launch.times for launch in gathers if launch.exposed) == 1  # the first
