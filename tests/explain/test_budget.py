"""Communication budgets: programs compiled inside and before, loops, threads, decorators, the pytest plugin."""

import os
import re
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


def test_programs_within_their_budget_pass(x):
    with sw.comm_budget(all_reduce=1):
        total(x)
    with sw.comm_budget(all_reduce=1, bytes=36):
        total(x)
    with sw.comm_budget(bytes=36):  # any kind
        total(x)
    with sw.comm_budget():
        sw.jit(jnp.sin)(x)


def test_the_error_states_the_excess_and_shows_the_plan(x):
    with pytest.raises(CommBudgetExceeded) as caught, sw.comm_budget(all_gather=1, bytes=35):
        total(x)
    text = str(caught.value)
    assert text.startswith(
        "communication budget exceeded: 1 all_reduce, allowed: 0; 36 B sent per device, allowed: 35 B\n\n"
        "total on mesh data=4, model=2: 1 collective, 36 B sent per device\n"
    )
    assert "leaves an unreduced sum over 'data'; `output` needs it reduced" in text
    assert isinstance(caught.value, AssertionError)


def test_every_call_counts_also_of_functions_compiled_before(x):
    total(x)
    over = pytest.raises(CommBudgetExceeded, match=r"2 all_reduce, allowed: 1(.|\n)*called 2 times")
    with over, sw.comm_budget(all_reduce=1):
        total(x)
        total(x)


def test_a_program_that_is_only_compiled_counts_once(x):
    with pytest.raises(CommBudgetExceeded, match="1 all_reduce, allowed: 0"), sw.comm_budget():
        sw.jit(lambda x: x.sum(0) + 1).lower(x).compile()
    with sw.comm_budget(all_reduce=1):
        compiled = sw.jit(lambda x: x.sum(0) + 2).lower(x).compile()
        compiled(x)
    with sw.comm_budget():
        sw.explain(total)(x)  # nothing is compiled


def test_eager_ops_and_device_put_count(x, mesh):
    with pytest.raises(CommBudgetExceeded, match="1 all_reduce, allowed: 0"), sw.comm_budget():
        jnp.sum(x)
    with pytest.raises(CommBudgetExceeded, match="1 all_gather, allowed: 0"), sw.comm_budget():
        sw.device_put(x, NamedSharding(mesh, P()))


def test_unused_arguments_captured_arrays_and_donation(x, mesh):
    replicated = sw.device_put(np.ones((6,), np.float32), NamedSharding(mesh, P()))
    with sw.comm_budget(all_reduce=1):
        sw.jit(lambda x, unused: x.sum(0) + replicated)(x, x)
    donated = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    with sw.comm_budget(all_reduce=1):
        sw.jit(lambda y: y - y.sum(0), donate_argnums=0)(donated)


def test_a_collective_in_a_loop_counts_once_and_its_bytes_in_every_iteration(mesh):
    w = sw.device_put(np.ones((6, 64, 64), np.float32), NamedSharding(mesh, P(None, "data")))
    rows = sw.device_put(np.ones((256, 64), np.float32), NamedSharding(mesh, P("data")))
    layers = sw.jit(lambda w, x: lax.scan(lambda h, w: (h @ w, None), x, w)[0])
    sent = 6 * 3 * (16 * 64 * 4)
    with sw.comm_budget(all_gather=1, bytes=sent):
        layers(w, rows)
    over = pytest.raises(CommBudgetExceeded, match=r"73\.7 kB sent per device, allowed: 73\.7 kB")
    with over, sw.comm_budget(bytes=sent - 1):
        layers(w, rows)


def test_launches_count_in_every_iteration_and_shared_ones_once(mesh):
    w, v = (sw.device_put(np.ones((6, 64, 64), np.float32), NamedSharding(mesh, P(None, "data"))) for _ in range(2))
    rows = sw.device_put(np.ones((8192, 64), np.float32), NamedSharding(mesh, P("data")))
    layers = sw.jit(lambda w, v, x: lax.scan(lambda h, ws: (h @ ws[0] + h @ ws[1], None), x, (w, v))[0])
    with sw.comm_budget(launches=12):  # CPUs do not share launches
        layers(w, v, rows)
    with pytest.raises(CommBudgetExceeded, match="exceeded: 12 launches, allowed: 11"), sw.comm_budget(launches=11):
        layers(w, v, rows)
    with sw.comm_budget(launches=6, hardware="h200") as budget:
        layers(w, v, rows)
        ((plan, _),) = budget.plans()
    assert plan.counts() == {"all_gather": len(plan.collectives)}
    assert len(plan.launches) < len(plan.collectives) and {len(launch) for launch in plan.launches} == {2}
    assert f": {len(plan.collectives)} collectives in {len(plan.launches)} launch" in str(plan)
    assert re.search(r"^  launch collective +axes.*\n +0 all_gather", str(plan), re.MULTILINE)
    assert ">launch</button>" in plan.to_html()


def test_exposed_communication(x):
    with sw.comm_budget(exposed_seconds=1):
        total(x)
    over = pytest.raises(CommBudgetExceeded, match=r"20\.0 µs of exposed communication, allowed: 1\.0 µs")
    with over, sw.comm_budget(exposed_seconds=1e-6):
        total(x)
    with sw.comm_budget(exposed_seconds=0):
        sw.jit(jnp.sin)(x)
    over = pytest.raises(CommBudgetExceeded, match="per call on h200, with overlap")
    with over, sw.comm_budget(exposed_seconds=1e-9, hardware="h200"):
        total(x)


def test_budgets_nest_and_start_again_when_entered_again(x):
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
        pass  # the first budget does not count any more


def test_other_threads_are_not_counted(x):
    with sw.comm_budget():
        thread = threading.Thread(target=total, args=(x,))
        thread.start()
        thread.join()


def test_a_decorated_function_has_a_budget_per_call(x):
    @sw.comm_budget(all_reduce=1)
    def once():
        return total(x)

    once()
    once()  # it has its own budget

    @sw.comm_budget()
    def never():
        return total(x)

    with pytest.raises(CommBudgetExceeded):
        never()


def test_wrong_budgets_raise():
    with pytest.raises(TypeError, match=r"there is no collective 'all_reduse'. Did you mean 'all_reduce'\?"):
        sw.comm_budget(all_reduse=1)
    with pytest.raises(TypeError, match=r"all_reduce must be the number of collectives that are allowed, not 1\.5"):
        sw.comm_budget(all_reduce=1.5)
    with pytest.raises(TypeError, match="bytes must be the number that each device may send, not -1"):
        sw.comm_budget(bytes=-1)
    with pytest.raises(TypeError, match=r"launches must be the number of launches that are allowed, not 2\.0"):
        sw.comm_budget(launches=2.0)
    with pytest.raises(TypeError, match="exposed_seconds must be the time that is allowed, not -1"):
        sw.comm_budget(exposed_seconds=-1)
    with pytest.raises(sw.errors.HardwareError):
        sw.comm_budget(hardware="abacus")


def test_the_pytest_plugin(tmp_path):
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
        "@pytest.mark.memory_budget(1)\n"
        "def test_memory_exceeded(memory_budget):\n"
        "    with memory_budget(1000):\n"
        "        f(x)\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )
    assert "2 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "FAILED test_user.py::test_mark_exceeded" in run.stdout
    assert "communication budget exceeded: 7 B sent per device, allowed: 0 B" in run.stdout
    assert "memory budget exceeded: `<lambda>` needs" in run.stdout
