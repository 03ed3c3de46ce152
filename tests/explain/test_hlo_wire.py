"""Wire bytes of hand-written and of compiled modules, compared with values worked out by hand."""

import numpy as np
import pytest

import shardwise as sw
from benchmarks import ours, programs
from benchmarks.counts import counts
from shardwise.explain.hlo_wire import wire

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def module(*lines: str, header: str = "replica_count=8", before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    head = f"HloModule m, is_scheduled=true, {header}"
    return f"{head}\n{ADD}{before}\nENTRY %main (p: f32[8,4]) -> f32[8,4] {{\n{body}\n}}\n"


PAIRS = "replica_groups={{0,1},{2,3},{4,5},{6,7}}"


@pytest.mark.parametrize(
    ("line", "group", "sent"),
    [
        (f"%c = f32[8,4]{{1,0}} all-reduce(%p), {PAIRS}, to_apply=%add", 2, 2 * 128 / 2),
        ("%c = f32[32,4]{1,0} all-gather(%p), replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}", 4, 512 * 3 / 4),
        ("%c = f32[2,4]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}", 4, 128 * 3 / 4),
        ("%c = f32[8,4]{1,0} all-to-all(%p), replica_groups=[1,8]<=[8], dimensions={0}", 8, 128 * 7 / 8),
        ("%c = f32[8,4]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 2, 128),
    ],
)
def test_formulas(line, group, sent):
    (result,) = wire(module(line)).collectives
    assert (len(result.devices), result.sent, result.times) == (group, sent, 1)
    assert result.name == "c" and result.kind in line


@pytest.mark.parametrize(
    ("attributes", "header", "size"),
    [
        ("replica_groups={}", "replica_count=2, num_partitions=4", 2),
        ("channel_id=1, replica_groups={}, use_global_device_ids=true", "replica_count=2, num_partitions=4", 8),
        ("channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true", "num_partitions=8", 4),
        ("channel_id=1, replica_groups={{0,1}}", "replica_count=2, num_partitions=4", 8),
        ("channel_id=1, replica_groups={{0}}", "num_partitions=8", 8),
    ],
)
def test_groups_of_replicas_and_of_partitions(attributes, header, size):
    line = f"%c = f32[8,4]{{1,0}} all-reduce(%p), {attributes}, to_apply=%add"
    assert wire(module(line, header=header)).collectives[0].devices == tuple(range(size))


def test_combined_collectives_count_once_with_all_their_bytes():
    types = ", ".join([*["f32[4]{0}"] * 5, "/*index=5*/bf16[8,4]{1,0:T(8,128)(2,1)}"])
    result = wire(module(f"%c = ({types}) all-reduce(%a, %b, %c, %d, %e, /*index=5*/%f), {PAIRS}, to_apply=%add"))
    assert (result.count, result.sent) == (1, 5 * 16 + 64)


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (
            [
                f"%s = f32[8,4]{{1,0}} all-reduce-start(%p), {PAIRS}, to_apply=%add",
                "%d = f32[8,4]{1,0} all-reduce-done(%s)",
            ],
            128,
        ),
        (
            [
                f"%s = ((f32[8,4]{{1,0}}), f32[8,4]{{1,0}}) all-reduce-start(%p), {PAIRS}, to_apply=%add",
                "%d = f32[8,4]{1,0} all-reduce-done(%s)",
            ],
            128,
        ),
        (
            [
                f"%s = (f32[8,4]{{1,0}}, f32[2]{{0}}) all-reduce-start(%p, %q), {PAIRS}, to_apply=%add",
                "%d = (f32[8,4]{1,0}, f32[2]{0}) all-reduce-done(%s)",
            ],
            128 + 8,
        ),
        (
            [
                f"%s = (f32[8,4]{{1,0}}, f32[16,4]{{1,0}}) all-gather-start(%p), {PAIRS}, dimensions={{0}}",
                "%d = f32[16,4]{1,0} all-gather-done(%s)",
            ],
            256 / 2,
        ),
        (
            [
                "%s = ((f32[8,4]{1,0}, f32[2]{0}), (f32[16,4]{1,0}, f32[4]{0})) "
                f"all-gather-start(%p, %q), {PAIRS}, dimensions={{0}}",
                "%d = (f32[16,4]{1,0}, f32[4]{0}) all-gather-done(%s)",
            ],
            (256 + 16) / 2,
        ),
        (
            [
                "%s = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(%p), "
                "source_target_pairs={{0,1},{1,2}}",
                "%d = f32[8,4]{1,0} collective-permute-done(%s)",
            ],
            128,
        ),
        (
            [
                f"%s = ((f32[8,4]{{1,0}}), f32[4,4]{{1,0}}, s32[]) reduce-scatter-start(%p), {PAIRS}, dimensions={{0}}",
                "%d = f32[4,4]{1,0} reduce-scatter-done(%s)",
            ],
            128 / 2,
        ),
    ],
)
def test_asynchronous_pairs_count_once(lines, sent):
    result = wire(module(*lines))
    assert (result.count, result.sent) == (1, sent)


def test_wrapped_asynchronous_computation_counts_once():
    wrapped = f"""
%wrapped (p: f32[8,4]) -> f32[8,4] {{
  %p.1 = f32[8,4]{{1,0}} parameter(0)
  ROOT %a2a = f32[8,4]{{1,0}} all-to-all(%p.1), {PAIRS}, dimensions={{0}}
}}, execution_thread="parallel"
"""
    result = wire(
        module(
            "%s = ((f32[8,4]{1,0}), f32[8,4]{1,0}, s32[]) async-start(%p), calls=%wrapped",
            "%u = ((f32[8,4]{1,0}), f32[8,4]{1,0}, s32[]) async-update(%s), calls=%wrapped",
            "ROOT %d = f32[8,4]{1,0} async-done(%u), calls=%wrapped",
            before=wrapped,
        )
    )
    assert (result.count, result.sent) == (1, 64)


def loop(name: str, inside: str, trips: int | None) -> tuple[str, str]:
    """Return the computations of a loop, and the instruction that runs it."""
    computations = f"""
%body_{name} (s: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {{
  %s = (s32[], f32[8,4]{{1,0}}) parameter(0)
  {inside}
  ROOT %t = (s32[], f32[8,4]{{1,0}}) tuple(%i, %c)
}}

%condition_{name} (s: (s32[], f32[8,4])) -> pred[] {{
  %s = (s32[], f32[8,4]{{1,0}}) parameter(0)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}}
"""
    known = f'{{"known_trip_count":{{"n":"{trips}"}},"known_init_step":{{"init":"0","step":"1"}}}}'
    config = f", backend_config={known}" if trips is not None else ""
    return computations, (
        f"%w_{name} = (s32[], f32[8,4]{{1,0}}) while(%init), condition=%condition_{name}, body=%body_{name}, "
        f'metadata={{op_name="jit(f)/while body=%nowhere"}}{config}'
    )


REDUCE = f"%c = f32[8,4]{{1,0}} all-reduce(%p), {PAIRS}, to_apply=%add"


def test_loop_bodies_count_once_per_iteration():
    inner, run_inner = loop("inner", REDUCE, 3)
    outer, run_outer = loop("outer", run_inner, 5)
    result = wire(module(REDUCE, run_outer, before=inner + outer))
    assert result.kinds() == {"all-reduce": 16}
    assert result.sent == 16 * 128 and result.unknown_loops == 0


def test_loop_with_unknown_trip_count_counts_once_and_is_reported():
    computations, run = loop("while", REDUCE, None)
    result = wire(module(run, before=computations))
    assert (result.count, result.sent, result.unknown_loops) == (1, 128, 1)


def test_loop_that_never_runs_sends_nothing():
    computations, run = loop("while", REDUCE, 0)
    assert wire(module(run, before=computations)).count == 0


@pytest.mark.parametrize(
    "branches", ["branch_computations={%small, %large}", "true_computation=%small, false_computation=%large"]
)
def test_branch_that_sends_most_counts(branches):
    computations = f"""
%small (p: f32[8,4]) -> f32[8,4] {{
  ROOT %c = f32[8,4]{{1,0}} collective-permute(%p), source_target_pairs={{{{0,0}},{{1,2}}}}
}}

%large (p: f32[8,4]) -> f32[8,4] {{
  %c = f32[8,4]{{1,0}} collective-permute(%p), source_target_pairs={{{{0,1}}}}
  ROOT {REDUCE.replace("%c", "%d")}
}}
"""
    assert wire(module(f"%c = f32[8,4]{{1,0}} conditional(%i, %p, %p), {branches}", before=computations)).sent == 256


def test_called_computations_count_for_each_call():
    called = f"\n%called (p: f32[8,4]) -> f32[8,4] {{\n  ROOT {REDUCE}\n}}\n"
    line = '= f32[8,4]{1,0} call(%p), to_apply=%called, metadata={op_name="f"}'
    result = wire(module(f"%x {line}", f"ROOT %y {line}", before=called))
    assert (result.count, result.sent) == (2, 256)


def test_collectives_that_send_nothing_are_not_counted():
    alone = "%c = f32[8,4]{1,0} all-reduce(%p), replica_groups={{0},{1},{2},{3}}, to_apply=%add"
    itself = "%d = f32[8,4]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}"
    assert wire(module(alone, itself)).count == 0


@pytest.mark.parametrize("line", ["%c = f32[8,4]{1,0} collective-broadcast(%p), replica_groups={{0,1}}"])
def test_collective_without_formula_is_an_error(line):
    with pytest.raises(ValueError, match="no formula for the bytes of collective-broadcast"):
        wire(module(line))


def test_text_that_is_not_a_module_is_an_error():
    with pytest.raises(ValueError, match="not an HLO module with an ENTRY computation: 'hello'"):
        wire("hello")


@pytest.mark.parametrize(
    ("type", "size"),
    [
        ("pred[8]", 8),
        ("s4[8]", 4),
        ("u2[3]", 1),
        ("f8e4m3fn[8]", 8),
        ("bf16[8]", 16),
        ("c64[8]", 64),
        ("f64[<=8]", 64),
        ("f32[]", 4),
        ("f32[0,8]", 0),
    ],
)
def test_bytes_of_types(type, size):
    result = wire(module(f"%c = {type} collective-permute(%p), source_target_pairs={{{{0,1}}}}"))
    assert result.sent == size


def test_compiled_sum_over_a_sharded_dim():
    mesh = ours.mesh((8,), ("x",))
    x = ours.put(np.ones((64, 16), np.float32), mesh, ("x", None))
    result = counts(ours.compiled(lambda x: sw.numpy.sum(x, 0), (x,)))
    assert result.wire.kinds() == {"all-reduce": 1}
    assert result.wire.sent == 2 * (16 * 4) * 7 / 8
    assert result.argument_bytes == 8 * 16 * 4


def test_compiled_all_gather():
    mesh = ours.mesh((4, 2), ("a", "b"))
    x = ours.put(np.ones((64, 16), np.float32), mesh, ("a", None))
    replicated = sw.NamedSharding(mesh, sw.P())
    result = counts(ours.compiled(lambda x: sw.lax.with_sharding_constraint(x + 1, replicated), (x,)))
    assert result.wire.kinds() == {"all-gather": 1}
    assert result.wire.sent == (64 * 16 * 4) * 3 / 4


def test_compiled_training_step_sends_the_planned_bytes():
    step, args = programs.on_mesh(ours, programs.LARGER)
    plan = sw.explain(step)(*args)
    assert counts(ours.compiled(step, args)).wire.sent == plan.wire_bytes
