"""Profiler traces name ops and source lines for Perfetto; memory profiles; parsing of XLA's HLO text."""

import gzip
import json
import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import profiler
from shardwise.runtime.hlo_instructions import read_instructions
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def line_of(mark):
    """Return `test_profiler.py:12` for the line 12 that ends with `# mark`."""
    with open(__file__) as file:
        (number,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}")]
    return f"test_profiler.py:{number}"


def loss(weights, x):
    with sw.named_scope("hidden"):
        h = jnp.tanh(x @ weights[0])  # first product
    out = h @ weights[1]  # second product
    return (out * out).mean()  # all-reduce


@sw.jit
def profiled(weights, x):
    """Run a training step. Its name is unique among tests: events of programs of the same name list all candidates."""
    gradients = sw.grad(loss)(weights, x)
    return [w - 0.1 * gradient for w, gradient in zip(weights, gradients, strict=True)]  # update


@pytest.fixture(scope="module")
def events(mesh, tmp_path_factory):
    """Trace a training step; return the folder and the events of the file for Perfetto."""
    folder = tmp_path_factory.mktemp("trace")
    columns, rows, batch = (NamedSharding(mesh, spec) for spec in (P(None, "model"), P("model"), P("data")))
    weights = [
        sw.device_put(np.ones((16, 32), np.float32), columns),
        sw.device_put(np.ones((32, 8), np.float32), rows),
    ]
    x = sw.device_put(np.ones((64, 16), np.float32), batch)
    weights = profiled(weights, x)
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    with profiler.trace(folder, profiler_options=options), profiler.StepTraceAnnotation("train", step_num=7):
        sw.block_until_ready(profiled(weights, x))
    with gzip.open(folder / "perfetto_trace.json.gz", "rt") as file:
        trace_events = json.load(file)["traceEvents"]
    return folder, trace_events


def of_category(events, category):
    return [event for event in events[1] if event.get("cat") == category]


def test_xla_profile_is_exported(events):
    assert len(list(events[0].glob("plugins/profile/*/*.xplane.pb"))) == 1
    assert len(list(events[0].glob("plugins/profile/*/*.trace.json.gz"))) == 1


def test_matmul_events_have_their_source_line_on_every_device(events):
    for name, mark in (("hidden/", "first product"), ("", "second product")):
        dots = [event for event in of_category(events, "compute") if event["name"] == f"{name}{line_of(mark)}/dot"]
        assert {event["args"]["device_ordinal"] for event in dots} == {str(index) for index in range(8)}
        assert all(event["args"]["source"] == f"{__file__}:{line_of(mark).split(':')[1]}" for event in dots)
        assert all(event["dur"] > 0 and event["args"]["hlo_module"] == "profiled" for event in dots)


def test_collectives_have_their_own_category(events):
    names = {event["name"] for event in of_category(events, "collective")}
    assert f"{line_of('all-reduce')}/all_reduce" in names
    assert all(re.fullmatch(r"test_profiler\.py:\d+/all_reduce", name) for name in names)
    assert not any("all_reduce" in event["name"] for event in of_category(events, "compute"))


def test_fusion_events_list_the_fused_ops(events):
    line = line_of("update")
    fusions = [event for event in of_category(events, "compute") if event["name"] == f"{line}/sub"]
    assert fusions
    for event in fusions:
        assert {f"{line}/sub", f"{line}/mul"} <= set(event["args"]["made_of"].split(", "))


def test_all_ops_are_named_and_internal_events_are_removed(events):
    executed = of_category(events, "compute") + of_category(events, "collective")
    unnamed = {event["name"] for event in executed if not re.search(r"test_profiler\.py:\d+/\w+$", event["name"])}
    assert unnamed == set()
    assert not any(event["name"].startswith(("end: ", "ThreadpoolListener")) for event in events[1])


def test_step_annotations_and_process_names_are_kept(events):
    (train,) = [event for event in events[1] if event["name"] == "train"]
    assert train["args"]["step_num"] == "7" and train["cat"] == "host"
    assert [event["args"]["name"] for event in events[1] if event["name"] == "process_name"] == ["/host:CPU"]


def test_only_one_trace_can_run(tmp_path):
    with pytest.raises(RuntimeError, match="stop_trace: no trace is running"):
        profiler.stop_trace()
    already = rf"a trace to {tmp_path} is already running"
    with profiler.trace(tmp_path), pytest.raises(RuntimeError, match=already):
        profiler.start_trace(tmp_path / "other")
    assert (tmp_path / "perfetto_trace.json.gz").exists()
    with pytest.raises(RuntimeError, match="no trace is running"):
        profiler.stop_trace()


def test_trace_stops_on_an_exception_and_a_folder_can_be_reused(tmp_path):
    for name in ("one", "two"):
        with pytest.raises(ZeroDivisionError), profiler.trace(tmp_path), profiler.TraceAnnotation(name):
            raise ZeroDivisionError
        with gzip.open(tmp_path / "perfetto_trace.json.gz", "rt") as file:
            names = {event.get("name") for event in json.load(file)["traceEvents"]}
        assert name in names and len(names & {"one", "two"}) == 1


def test_start_trace_fails_if_the_folder_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            sw.profiler.start_trace(folder)
    with sw.profiler.trace(tmp_path / "new" / "folder"):  # no trace is running
        sw.block_until_ready(jnp.ones(3) + 1)
    assert (tmp_path / "new" / "folder" / "perfetto_trace.json.gz").exists()


def test_perfetto_link_is_not_supported(tmp_path):
    with pytest.raises(NotImplementedError, match=r"open .*perfetto_trace.json.gz in https://ui.perfetto.dev"):
        profiler.start_trace(tmp_path, create_perfetto_link=True)


def test_annotated_functions_are_events(tmp_path):
    @profiler.annotate_function
    def load(x):
        return x + 1

    named = profiler.annotate_function(load, name="again", batch=3)
    with profiler.trace(tmp_path, create_perfetto_trace=True):
        assert load(1) == 2 and named(1) == 2
    with gzip.open(tmp_path / "perfetto_trace.json.gz", "rt") as file:
        args_by_name = {event["name"]: event.get("args") for event in json.load(file)["traceEvents"]}
    assert any(name.endswith("<locals>.load") for name in args_by_name)
    assert args_by_name["again"] == {"batch": "3"}


def test_memory_profile_lists_buffers_and_executables(tmp_path):
    kept = jnp.ones(1000)
    before = gzip.decompress(profiler.device_memory_profile())
    assert b"buffer" in before and b"executable" in before
    kept.delete()
    more = [jnp.full((3, 7), 1.0) for _ in range(10)]
    profiler.save_device_memory_profile(tmp_path / "memory.prof")
    after = gzip.decompress((tmp_path / "memory.prof").read_bytes())
    assert after != before and len(more) == 10


def test_only_one_server_can_run():
    with pytest.raises(ValueError, match="no profiler server is running"):
        profiler.stop_server()
    profiler.start_server(0)
    try:
        with pytest.raises(ValueError, match="already running"):
            profiler.start_server(0)
    finally:
        profiler.stop_server()


HLO_TEXT = r"""HloModule step, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

FileNames
1 "/home/me/train.py"
2 "/home/me/model.py"

FunctionNames
1 "train.py:41/sub"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=0 end_column=0}
2 {file_name_id=2 function_name_id=1 line=7 end_line=7 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}


%inner (p.1: f32[8]) -> f32[8] {
  %p.1 = f32[8]{0} parameter(0)
  ROOT %tanh.1 = f32[8]{0} tanh(%p.1), metadata={op_name="a \"b\"/model.py:7/tanh" stack_frame_id=2}
}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(8,128)} parameter(0)
  %c = f32[8]{0} call(%p), to_apply=%inner
  %nested = f32[8]{0} fusion(%p), kind=kLoop, calls=%inner
  ROOT %sub.0 = f32[8]{0} subtract(%p, %nested), metadata={op_name="train.py:41/mul;train.py:41/sub"}
}

ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %fusion.3 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="train.py:41/sub" stack_frame_id=1}
  %all-gather-start = (f32[8]{0}, f32[64]{0}) all-gather-start(%x), metadata={op_name="train.py:41/all_gather"}
  %old = f32[8]{0} add(%x, %x), metadata={op_name="e.py:3/add" source_file="/home/me/e.py" source_line=3}
  ROOT %tuple = (f32[8]{0}, f32[8]{0}) tuple(%x, %fusion.3)
}
"""


def test_hlo_text_is_parsed():
    instructions = read_instructions(HLO_TEXT)
    fusion = instructions["fusion.3"]
    assert (fusion.opcode, fusion.name, fusion.source) == ("fusion", "train.py:41/sub", "/home/me/train.py:41")
    assert fusion.made_of == ('a "b"/model.py:7/tanh', "train.py:41/mul", "train.py:41/sub")
    assert instructions["tanh.1"].source == "/home/me/model.py:7"
    assert instructions["old"].source == "/home/me/e.py:3"
    result = instructions["tuple"]
    assert (result.opcode, result.name, result.made_of) == ("tuple", "", ())
    assert [name for name, instruction in instructions.items() if instruction.is_collective] == ["all-gather-start"]


def test_sessions_keep_their_profile_in_memory(tmp_path):
    session = profiler.ProfileSession()
    assert session.profile_data is None and not session.is_running
    with pytest.raises(RuntimeError, match="not running"):
        session.stop()
    with pytest.raises(RuntimeError, match="has not recorded anything"):
        session.export_profile_data(tmp_path)
    with session, profiler.TraceAnnotation("in a session"):
        assert session.is_running
        with pytest.raises(RuntimeError, match=r"the session is running; call its stop\(\)"):
            session.export_profile_data(tmp_path)
    assert not session.is_running and not list(tmp_path.iterdir())
    profile = session.profile_data
    assert isinstance(profile, profiler.ProfileData)
    names = {event.name for plane in profile.planes for line in plane.lines for event in line.events}
    assert "in a session" in names
    for exported, session_id in ((session, "by session"), (profile, "by profile")):
        profiler.export_profile_data(exported, tmp_path, session_id=session_id)
        (file,) = (tmp_path / "plugins" / "profile" / session_id).glob("*.xplane.pb")
        planes = profiler.ProfileData.from_file(str(file)).planes
        assert [plane.name for plane in planes] == [plane.name for plane in profile.planes]
    with pytest.raises(TypeError, match="expected a ProfileSession"):
        profiler.export_profile_data(profiler.ProfileData.from_file(str(file)), tmp_path)


def test_a_session_can_stop_inside_its_block(tmp_path):
    with profiler.ProfileSession(tmp_path) as session:
        profile = session.stop()
    assert session.profile_data is profile and (tmp_path / "perfetto_trace.json.gz").exists()
    with profiler.trace() as session:  # without a folder
        pass
    assert isinstance(session.profile_data, profiler.ProfileData)
    assert profiler.start_trace(tmp_path).is_running
    assert isinstance(profiler.stop_trace(), profiler.ProfileData)
