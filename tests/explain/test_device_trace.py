"""Profiles that were recorded on an H200, written by the tests, and recorded here; and files that are no profiles."""

import gzip
import os
from pathlib import Path

import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.errors import ProfileError
from shardwise.explain.device_trace import read_trace
from tests.explain.xplane_writer import gpu_profile, plane, profile

RECORDED = Path(__file__).parent / "recorded"
LOOP = """HloModule scanned, is_scheduled=true

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4]{0} get-tuple-element(%p), index=1
  %square.1 = f32[4]{0} multiply(%x, %x)
  ROOT %out = (s32[], f32[4]) tuple(%i, %square.1)
}

%condition (q: (s32[], f32[4])) -> pred[] {
  %q = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %three = s32[] constant(3)
  ROOT %less.1 = pred[] compare(%j, %three), direction=LT
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4]) tuple(%zero, %a)
  %loop = (s32[], f32[4]) while(%start), condition=%condition, body=%body
  %y = f32[4]{0} get-tuple-element(%loop), index=1
  ROOT %negate.1 = f32[4]{0} negate(%y)
}
"""


def write(path, content):
    path.write_bytes(content)
    return path


def test_a_recorded_profile_has_two_runs():
    trace = read_trace(RECORDED / "h200_mlp.xplane.pb.gz")
    program = trace.program()
    assert (program.name, program.device_kind) == ("step", "NVIDIA H200")
    assert [len(run.events) for run in program.runs] == [40, 40]
    assert [round(run.seconds * 1e3, 2) for run in program.runs] == [19.76, 17.05]
    assert program.typical is program.runs[1]  # of two runs, the faster
    assert "__cublas$lt$matmul" in program.text and program.module.entry == "main.2"


def test_runs_that_begin_with_a_loop(tmp_path):
    """The kernels of the loop occur more often than once per run, so the kernel after it separates the runs."""
    runs = []
    for start in (0.0, 1e-3):
        body = [("square_1", "square.1", start + 1e-5 * step, 9e-6) for step in range(3)]
        runs.append([*body, ("negate_1", "negate.1", start + 3e-5, 2e-6)])
    program = read_trace(write(tmp_path / "x.xplane.pb", gpu_profile(LOOP, {0: runs}))).program("scanned")
    assert [[event.instruction for event in run.events] for run in program.runs] == [
        ["square.1", "square.1", "square.1", "negate.1"]
    ] * 2
    assert program.runs[0].seconds == pytest.approx(3.2e-5)


@pytest.fixture(scope="module")
def cpu_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    x = jax.device_put(jnp.ones((64, 64)), jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P("d")))
    step = jax.jit(lambda x: (x @ x.T).sum())
    jax.block_until_ready(step(x))
    with jax.profiler.trace(folder):
        for _ in range(3):
            jax.block_until_ready(step(x))
    return folder


def test_a_profile_of_this_machine(cpu_folder):
    program = read_trace(cpu_folder).program()
    assert program.device_kind == "cpu"
    assert sorted(run.device for run in program.runs) == [0, 0, 0, 1, 1, 1]
    assert all(run.seconds > 0 for run in program.runs)


def test_the_newest_profile_of_a_folder_counts(cpu_folder, tmp_path):
    (file,) = cpu_folder.rglob("*.xplane.pb")
    assert [read_trace(place).path for place in (file, file.parent, file.parents[1], cpu_folder)] == [file] * 4
    for age, name in enumerate(("first", "second")):
        run = tmp_path / "plugins" / "profile" / name
        run.mkdir(parents=True)
        write(run / "host.xplane.pb", file.read_bytes())
        os.utime(run / "host.xplane.pb", (0, 1000 - age))
    assert read_trace(tmp_path).path.parent.name == "first"


def test_bad_profiles(tmp_path, cpu_folder):
    text = write(tmp_path / "notes.txt", b"not a profile at all")
    (file,) = cpu_folder.rglob("*.xplane.pb")
    truncated = write(tmp_path / "half.xplane.pb", file.read_bytes()[:-1000])
    half = write(tmp_path / "half.xplane.pb.gz", gzip.compress(b"x" * 10000)[:-9])
    empty = write(tmp_path / "empty.xplane.pb", b"")
    host = write(tmp_path / "host.xplane.pb", profile(plane("/host:CPU", {"python": [("call", 0, 1e-3, {})]})))
    tpu = write(tmp_path / "tpu.xplane.pb", profile(plane("/device:TPU:0", {"XLA Ops": [("%x", 0, 1e-3, {})]})))
    (tmp_path / "folder").mkdir()
    for path, message in (
        (text, r"notes.txt' is not a profile of XLA, or not a complete one: .* Record one: `with shardwise.profiler"),
        (truncated, "is not a profile of XLA, or not a complete one"),
        (half, "cannot be read: Compressed file ended"),
        (empty, r"has no kernel of a compiled program on a GPU or CPU \(planes: none\)"),
        (host, r"planes: /host:CPU\). Call the function while the profile is recorded"),
        (tpu, "planes: /device:TPU:0"),
        (tmp_path / "folder", r"has no profile of XLA, \*.xplane.pb"),
        (tmp_path / "absent", "there is no profile"),
    ):
        with pytest.raises(ProfileError, match=message):
            read_trace(path)
    with pytest.raises(ProfileError, match="has no run of a program 'other', but of"):
        read_trace(cpu_folder).program("other")


def test_the_hlo_may_be_a_file(tmp_path):
    runs = [[("negate_1", "negate.1", 0.0, 2e-6)]]
    path = write(tmp_path / "x.xplane.pb", gpu_profile(LOOP, {0: runs}, has_hlo=False))
    with pytest.raises(ProfileError, match=r"does not contain the HLO of scanned\(7\). Pass it as a file"):
        read_trace(path)
    hlo = write(tmp_path / "x.hlo", LOOP.encode())
    assert read_trace(path, hlo).program().text == LOOP
    with pytest.raises(ProfileError, match="is not HLO: it must begin with `HloModule`"):
        read_trace(path, write(tmp_path / "y.hlo", b"module {}"))
