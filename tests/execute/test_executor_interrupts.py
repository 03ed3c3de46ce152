"""Ctrl-C: KeyboardInterrupt is raised when the call returns or is awaited, and later programs run correctly."""

import os
import signal
import subprocess
import sys

import pytest

HEAD = """
import os, signal, sys, threading, time
import numpy as np
import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.dispatch import open_frames

signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore SIGINT

def usable():
    assert not open_frames()
    assert sw.grad(lambda x: jnp.sin(x) * x)(0.0) == 0.0
    mesh = sw.make_mesh((8,), ("x",))
    x = sw.device_put(np.arange(16.0), sw.NamedSharding(mesh, sw.P("x")))
    assert float(sw.jit(jnp.sum)(x)) == 120.0
"""

WAITING = """
@sw.jit
def spin(x):
    return lax.fori_loop(0, 3_000_000, lambda i, y: y * 0.5 + 1.0, x)

usable()
spin.lower(1.0).compile()
try:
    y = spin(1.0)
    print("running", flush=True)
    y.block_until_ready()
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
np.testing.assert_allclose(float(y), 2.0)
np.testing.assert_allclose(float(spin(3.0)), 2.0)
usable()
print("usable")
"""

# The signal comes at increasing delays: while the function is traced, planned, or compiled by XLA.
COMPILING = """
def deep(x):
    for layer in range(LAYERS):
        x = jnp.tanh(x @ x + layer)
    return x

caught = 0
usable()
for delay in DELAYS:
    f = sw.jit(sw.grad(lambda x: deep(x).sum()))
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        f(jnp.eye(4))
        timer.join()
        time.sleep(0.1)
    except KeyboardInterrupt:
        caught += 1
    assert not open_frames()
    assert f(jnp.eye(4)).shape == (4, 4)
    usable()
print("caught", caught)
"""


def started(code):
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )


def test_interrupt_while_waiting_for_a_result():
    process = started(WAITING)
    assert process.stdout.readline() == "running\n", process.stderr.read()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert out.split() == ["interrupted", "usable"], errors
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("delays", "layers"),
    [
        pytest.param([0.03, 0.3], 20, id="twice"),
        pytest.param([0.01 * 1.9**number for number in range(10)], 60, id="often", marks=pytest.mark.slow),
    ],
)
def test_interrupt_while_tracing_and_compiling(delays, layers):
    process = started(f"DELAYS, LAYERS = {delays}, {layers}\n{COMPILING}")
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert out.split() == ["caught", str(len(delays))]
