"""debug.breakpoint: the debugger sees the values that a compiled program has, and the frames of the traced code."""

import io

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def session(function, commands, *args, **options):
    """Run `function(stop, *args)`, in which `stop()` is a breakpoint with these commands; return what is printed."""
    out = io.StringIO()
    source = io.StringIO("\n".join(commands) + "\n")
    function(lambda: sw.debug.breakpoint(stdin=source, stdout=out, **options), *args)
    return out.getvalue().removeprefix("Entering the debugger:\n").replace("(sdb) ", "")


def test_values_of_traced_variables():
    def run(stop, x):
        def inner(x):
            doubled = {"twice": 2 * x}
            stop()
            return doubled["twice"] + 1

        assert sw.jit(inner)(x).tolist() == [1, 3, 5]

    text = session(run, ["u", "p x", "doubled", "pp int(doubled['twice'].sum())", "p unknown", "c"], jnp.arange(3))
    lines = text.splitlines()
    assert lines[0].endswith(": inner")
    assert lines[1:4] == ["Array([0, 1, 2], dtype=int32)", "{'twice': Array([0, 2, 4], dtype=int32)}", "6"]
    assert lines[4].startswith("NameError")


def test_frames_and_source():
    def run(stop):
        def called(x):
            stop()
            return x

        def calling(x):
            outer_variable = 7
            return called(x) + outer_variable

        sw.jit(calling)(1)

    text = session(run, ["u", "u", "p outer_variable", "d", "l", "bt", "h c"])
    assert "7" in text.splitlines()
    assert any(line.startswith("->") and "stop()" in line for line in text.splitlines())
    assert any(line.startswith("> ") and line.endswith(": called") for line in text.splitlines())
    assert "c(ontinue): leave the debugger" in text


def test_outside_jit_and_for_sharded_arrays(mesh):
    x = sw.device_put(np.arange(8), NamedSharding(mesh, P("data")))

    def eager(stop, y):
        stop()

    def run(stop, x):
        @sw.jit
        def inner(y):
            y = y + 1
            stop()
            return y

        inner(x)

    assert "Array([1, 2, 3, 4, 5, 6, 7, 8], dtype=int32)" in session(run, ["u", "p y"], x)
    assert "Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)" in session(eager, ["u", "p y"], x)


def test_quit_raises_and_num_frames():
    def run(stop):
        sw.jit(lambda x: stop())(1)

    with pytest.raises(KeyboardInterrupt):
        session(run, ["q"])
    assert "outermost frame" in session(run, ["u", "u", "u"], num_frames=2)
    with pytest.raises(ValueError, match="backend must be None or 'cli'"):
        sw.debug.breakpoint(backend="web")
