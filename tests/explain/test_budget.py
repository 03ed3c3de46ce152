"""Budgets: kept and exceeded, by programs compiled inside and long before, in loops, in threads, and under pytest."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.explain.budget import CommBudgetExceeded
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


@pytest.fixture
def x(mesh):
    return sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))


@sw.jit
def total(x):
    return x.sum(0)  # one all-reduce of 6 floats over 4 devices: 36 bytes


def test_within(x):
    with sw.comm_budget(all_reduce=1):
        total(x)
    with sw.comm_budget(all_reduce=1, bytes=36):
        total(x)
    with sw.comm_budget(bytes=36):  # any kind
        total(x)
    with sw.comm_budget():
        sw.jit(jnp.sin)(x)


def test_exceeded_says_what_and_shows_the_plan(x):
    with pytest.raises(CommBudgetExceeded) as caught, sw.comm_budget(all_gather=1, bytes=35):
        total(x)
    text = str(caught.value)
    assert text.startswith(
        "over the communication budget: 1 all_reduce where 0 may be; 36 B sent by each device where 35 B may be\n\n"
        "total on mesh data=4, model=2: 1 collective, 36 B sent by each device\n"
    )
    assert "leaves terms of a sum along 'data'" in text
    assert isinstance(caught.value, AssertionError)


def test_what_was_compiled_before_counts_and_every_call_counts(x):
    total(x)
    over = pytest.raises(CommBudgetExceeded, match=r"2 all_reduce where 1 may be(.|\n)*called 2 times")
    with over, sw.comm_budget(all_reduce=1):
        total(x)
        total(x)


def test_what_is_only_compiled_counts_once(x):
    with pytest.raises(CommBudgetExceeded, match="1 all_reduce where 0 may be"), sw.comm_budget():
        sw.jit(lambda x: x.sum(0) + 1).lower(x).compile()
    with sw.comm_budget(all_reduce=1):
        compiled = sw.jit(lambda x: x.sum(0) + 2).lower(x).compile()
        compiled(x)
    with sw.comm_budget():
        sw.explain(total)(x)  # nothing is compiled


def test_single_ops_and_moves_count(x, mesh):
    with pytest.raises(CommBudgetExceeded, match="1 all_reduce where 0 may be"), sw.comm_budget():
        jnp.sum(x)
    with pytest.raises(CommBudgetExceeded, match="1 all_gather where 0 may be"), sw.comm_budget():
        sw.device_put(x, NamedSharding(mesh, P()))


def test_unused_arguments_captured_arrays_and_donation(x, mesh):
    whole = sw.device_put(np.ones((6,), np.float32), NamedSharding(mesh, P()))
    with sw.comm_budget(all_reduce=1):
        sw.jit(lambda x, unused: x.sum(0) + whole)(x, x)
    moving = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    with sw.comm_budget(all_reduce=1):
        sw.jit(lambda y: y - y.sum(0), donate_argnums=0)(moving)


def test_a_loop_counts_its_collective_once_and_its_bytes_each_time(mesh):
    w = sw.device_put(np.ones((6, 64, 64), np.float32), NamedSharding(mesh, P(None, "data")))
    rows = sw.device_put(np.ones((256, 64), np.float32), NamedSharding(mesh, P("data")))
    layers = sw.jit(lambda w, x: lax.scan(lambda h, w: (h @ w, None), x, w)[0])
    sent = 6 * 3 * (16 * 64 * 4)
    with sw.comm_budget(all_gather=1, bytes=sent):
        layers(w, rows)
    over = pytest.raises(CommBudgetExceeded, match=r"73\.7 kB sent by each device where 73\.7 kB may be")
    with over, sw.comm_budget(bytes=sent - 1):
        layers(w, rows)


def test_budgets_nest_and_forget(x):
    with sw.comm_budget(all_reduce=3) as outer:
        with sw.comm_budget(all_reduce=1):
            total(x)
        with sw.comm_budget(all_reduce=1):
            total(x)
        assert [count for _, count in outer.plans()] == [2]
    with outer:
        assert outer.plans() == []


def test_an_error_inside_is_not_hidden(x):
    with pytest.raises(ZeroDivisionError), sw.comm_budget():
        total(x)
        _ = 1 / 0
    with sw.comm_budget():
        pass  # and nobody watches any more


def test_other_threads_are_not_counted(x):
    with sw.comm_budget():
        thread = threading.Thread(target=total, args=(x,))
        thread.start()
        thread.join()


def test_as_a_decorator(x):
    @sw.comm_budget(all_reduce=1)
    def once():
        return total(x)

    once()
    once()  # a budget each

    @sw.comm_budget()
    def never():
        return total(x)

    with pytest.raises(CommBudgetExceeded):
        never()


def test_wrong_budgets():
    with pytest.raises(TypeError, match=r"there is no collective 'all_reduse'. Did you mean 'all_reduce'\?"):
        sw.comm_budget(all_reduse=1)
    with pytest.raises(TypeError, match=r"all_reduce is how many there may be, not 1\.5"):
        sw.comm_budget(all_reduce=1.5)
    with pytest.raises(TypeError, match="bytes is how many each device may send, not -1"):
        sw.comm_budget(bytes=-1)


def test_the_plugin(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["shardwise.explain.testing"]\n')
    (tmp_path / "test_user.py").write_text(
        "import numpy as np, pytest, shardwise as sw\n"
        "from shardwise.sharding import NamedSharding, PartitionSpec as P\n"
        "x = sw.device_put(np.ones(8, np.float32), NamedSharding(sw.make_mesh((8,), ('d',)), P('d')))\n"
        "f = sw.jit(lambda x: x.sum())\n"
        "def test_fixture(comm_budget):\n"
        "    with comm_budget(all_reduce=1):\n"
        "        f(x)\n"
        "@pytest.mark.comm_budget(all_reduce=1)\n"
        "def test_mark_within():\n"
        "    f(x)\n"
        "@pytest.mark.comm_budget(bytes=0)\n"
        "def test_mark_exceeded():\n"
        "    f(x)\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "FAILED test_user.py::test_mark_exceeded" in run.stdout
    assert "over the communication budget: 7 B sent by each device where 0 B may be" in run.stdout
