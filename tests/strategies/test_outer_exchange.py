"""OuterExchange and OuterServer in threads: against numpy, late and absent groups, and errors."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, strategies
from shardwise.errors import RendezvousError, StrategyError
from shardwise.processes.call_server import call
from shardwise.strategies import outer_server

LONG = 300.0  # seconds: a deadline that no test reaches


@pytest.fixture
def server():
    server = strategies.OuterServer(strategies.OuterMomentum(0.7, 0.9), deadline=LONG)
    yield server
    server.close()


def joined(server, *names):
    exchanges = [strategies.OuterExchange(server.ticket, name) for name in names]
    for exchange in exchanges:
        exchange.join({"w": np.zeros(3, np.float32)})
    return exchanges


def together(exchanges, values):
    """Return the results of exchanges that run at the same time."""
    with ThreadPoolExecutor(len(exchanges)) as pool:
        futures = [
            pool.submit(one.exchange, {"w": np.float32(value)}) for one, value in zip(exchanges, values, strict=True)
        ]
        return [future.result(LONG)["w"] for future in futures]


def test_three_groups_update_as_numpy_does(server):
    exchanges, rng = joined(server, "a", "b", "c"), np.random.default_rng(0)
    outer, velocity = np.zeros(3), np.zeros(3)
    for number in range(1, 4):
        values = rng.normal(size=(3, 3))
        results = together(exchanges, values)
        gradient = outer - values.mean(0)
        velocity = 0.9 * velocity + gradient
        outer = outer - 0.7 * (gradient + 0.9 * velocity)
        for result in results:
            np.testing.assert_allclose(result, outer, rtol=1e-5)
            np.testing.assert_array_equal(result, results[0])
        assert server.version == number and server.groups == ("a", "b", "c")


def test_the_first_group_has_the_parameters_and_the_shardings_stay(server, mesh):
    first = strategies.OuterExchange(server.ticket, "a")
    params = {"w": jnp.arange(8.0), "b": jnp.ones((2, 3), jnp.bfloat16)}
    first.join(params)
    sharded = sw.device_put(sw.tree.map(jnp.zeros_like, params), sw.NamedSharding(mesh, P("data")))
    other = strategies.OuterExchange(server.ticket, "b")
    with pytest.raises(StrategyError, match="call `join` before `exchange`"):
        other.exchange(params)
    found = other.join(sharded)
    assert found["w"].sharding == sharded["w"].sharding and found["b"].dtype == jnp.bfloat16
    for name, value in params.items():
        np.testing.assert_array_equal(np.float32(found[name]), np.float32(value))


def test_a_group_that_misses_the_deadline_is_not_awaited_again_until_it_returns():
    server = strategies.OuterServer(strategies.OuterMomentum(1.0, 0.0), deadline=0.5, max_staleness=2)
    a, b = joined(server, "a", "b")
    assert a.exchange({"w": np.full(3, 1, np.float32)})["w"].tolist() == [1, 1, 1]  # after the deadline, without b
    assert server.groups == ("a",) and server.version == 1
    assert a.exchange({"w": np.full(3, 2, np.float32)})["w"].tolist() == [2, 2, 2]  # at once
    late = b.exchange({"w": np.full(3, 5, np.float32)})  # 5 more than the parameters two updates before
    assert late["w"].tolist() == [7, 7, 7] and b.version == 3
    assert server.groups == ("b",)
    server.close()


def test_old_and_infinite_gradients_are_dropped(server, caplog):
    a, b = joined(server, "a", "b")
    b.close()
    for value in range(1, 5):
        a.exchange({"w": np.full(3, value, np.float32)})
    current = a.exchange({"w": np.full(3, np.nan, np.float32)})["w"]
    assert np.isfinite(current).all() and server.version == 4
    assert "the outer gradient of the group 'a' was dropped: it is not finite" in caplog.text
    (stale,) = joined(server, "b")
    stale.version = 1
    np.testing.assert_array_equal(stale.exchange({"w": np.full(3, 9, np.float32)})["w"], current)
    assert "it has missed 3 updates, more than max_staleness=2" in caplog.text and stale.version == 4


def test_a_group_that_joins_again_replaces_the_one_before(server, caplog):
    (a,) = joined(server, "a")
    a.exchange({"w": np.full(3, 1, np.float32)})
    again = strategies.OuterExchange(server.ticket, "a")
    found = again.join({"w": np.zeros(3, np.float32)})["w"]
    np.testing.assert_array_equal(a.exchange({"w": np.full(3, 5, np.float32)})["w"], found)
    assert "another process has joined as this group" in caplog.text
    a.close()  # does not remove its successor
    assert server.groups == ("a",)


def test_a_request_that_is_sent_twice_counts_once(server):
    (a,) = joined(server, "a")
    first = a.exchange({"w": np.full(3, 1, np.float32)})["w"]
    a._number -= 1  # as if the answer was lost
    np.testing.assert_array_equal(a.exchange({"w": np.full(3, 9, np.float32)})["w"], first)
    assert server.version == 1


def test_a_request_that_arrives_twice_at_once_counts_once(server, monkeypatch):
    a, b = joined(server, "a", "b")
    fetched = threading.Barrier(3)
    fetch = outer_server.fetch

    def fetch_together(*arguments):
        data = fetch(*arguments)
        fetched.wait(LONG)
        return data

    monkeypatch.setattr(outer_server, "fetch", fetch_together)
    requests = []
    monkeypatch.setattr(a, "_call", lambda request: requests.append(request) or {"version": 0, "offer": None})
    monkeypatch.setattr(a, "_take", lambda answer, params: params)
    a.exchange({"w": np.full(3, 1, np.float32)})
    with ThreadPoolExecutor(3) as pool:
        twice = [pool.submit(call, server.ticket, requests[0], LONG) for _ in range(2)]
        other = pool.submit(b.exchange, {"w": np.full(3, 3, np.float32)})
        assert [future.result(LONG)["version"] for future in twice] == [1, 1]
        other.result(LONG)
    assert server.version == 1 and server._round.gradients == {}


def test_groups_that_wait_for_a_server_that_closes_get_an_error(server):
    a, _ = joined(server, "a", "b")
    a._patience = 0.0
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(a.exchange, {"w": np.ones(3, np.float32)})
        while not server._round.gradients:
            time.sleep(0.01)
        timer = server._round.timer
        server.close()
        with pytest.raises(RendezvousError, match="does not answer the group 'a'"):
            future.result(LONG)
    timer.join(LONG)  # else it would keep the gradients until the deadline


def test_a_round_keeps_no_timer(server):
    a, b = joined(server, "a", "b")
    before = {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)}
    for value in range(3):
        together([a, b], np.full((2, 3), value))
    for thread in {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)} - before:
        thread.join(LONG / 10)
        assert not thread.is_alive()


def wait_until(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def end_without_leaving(exchange):
    """Let the process of an exchange end, for the server: nobody listens at its address any more."""
    exchange._blobs.close()


def test_a_group_that_has_ended_is_not_awaited(server):
    exchanges = joined(server, "a", "b")
    together(exchanges, np.ones((2, 3)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(exchanges[0].exchange, {"w": np.float32([1, 1, 1])})
        wait_until(lambda: server._round.gradients)
        end_without_leaving(exchanges[1])
        waiting.result(LONG)
    assert server.groups == ("a",) and (server.version, server.gradients) == (2, 3)


def test_a_group_that_joins_later_is_awaited_after_its_first_gradient(server):
    (first,) = joined(server, "a")
    first.exchange({"w": np.ones(3, np.float32)})
    (second,) = joined(server, "b")
    first.exchange({"w": np.ones(3, np.float32)})  # does not wait for b
    assert server.groups == ("a",)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.exchange, {"w": np.ones(3, np.float32)})
        wait_until(lambda: server._round.gradients)
        first.exchange({"w": np.ones(3, np.float32)})
        waiting.result(LONG)
    assert server.groups == ("a", "b") and server.version == 3


def test_a_spare_takes_the_place_of_a_group_that_has_ended_or_is_late(caplog):
    server = strategies.OuterServer(groups=["a", "b"], deadline=0.5)
    try:
        first, second = joined(server, None, None)
        assert (first.group, second.group) == ("a", "b")
        together([first, second], np.ones((2, 3)))
        spare = strategies.OuterExchange(server.ticket, None)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(spare.join, {"w": np.zeros(3, np.float32)})
            first.exchange({"w": np.ones(3, np.float32)})  # until the deadline
            waiting.result(LONG)
            assert spare.group == "b" and spare.version == server.version == 2
            replaced = pool.submit(second.exchange, {"w": np.ones(3, np.float32)})  # waits for a place again
            wait_until(lambda: second.group is None)
            assert "was dropped: another process has joined as this group" in caplog.text
            end_without_leaving(first)
            replaced.result(LONG)
            assert second.group == "a" and second.version == server.version
    finally:
        server.close()


@pytest.mark.parametrize(("deadline", "awaited"), [(LONG, ("a",)), (0.01, ())])
def test_a_spare_that_joins_before_the_deadline_is_awaited(deadline, awaited):
    server = strategies.OuterServer(groups=["a"], deadline=deadline)
    try:
        (first,) = joined(server, None)
        first.exchange({"w": np.ones(3, np.float32)})
        end_without_leaving(first)
        wait_until(lambda: server.groups == ())
        (spare,) = joined(server, None)
        assert (spare.group, spare.version, server.groups) == ("a", 1, awaited)
    finally:
        server.close()


def test_the_deadline_is_after_the_time_at_which_groups_are_expected():
    server = strategies.OuterServer(deadline=0.1)
    try:
        exchanges = joined(server, "a", "b")
        together(exchanges, np.ones((2, 3)))
        server._interval = LONG  # between the last two updates
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(exchanges[0].exchange, {"w": np.ones(3, np.float32)})
            time.sleep(0.5)
            exchanges[1].exchange({"w": np.ones(3, np.float32)})
            early.result(LONG)
        assert (server.version, server.gradients) == (2, 4)
        assert server._interval < 5, "one long interval delays the next deadline"
    finally:
        server.close()


def test_a_group_that_leaves_is_not_awaited(server):
    a, b = joined(server, "a", "b")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(a.exchange, {"w": np.ones(3, np.float32)})
        b.close()
        assert future.result(LONG)["w"].shape == (3,) and server.groups == ("a",)


def test_errors(server):
    a, closed = joined(server, "a", "closed")
    closed.close()
    closed.close()
    for method in (closed.join, closed.exchange):
        with pytest.raises(StrategyError, match="the group 'closed' has left with `close`: create another"):
            method({"w": np.zeros(3, np.float32)})
    with pytest.raises(StrategyError, match=r"'b' cannot join: its parameters differ .* \[\['w', \[4\], 'float32'\]\]"):
        strategies.OuterExchange(server.ticket, "b").join({"w": np.zeros(4, np.float32)})
    with pytest.raises(StrategyError, match=r"'w' is .*, not a floating-point array"):
        a.join({"w": np.zeros(3, np.int32)})
    with pytest.raises(
        StrategyError, match="the names, shapes or dtypes of the parameters differ from those of `join`"
    ):
        a.exchange({"w": np.zeros(4, np.float32)})
    with pytest.raises(StrategyError, match="the address of a ticket must be host:port"):
        strategies.OuterExchange("nowhere", "a")
    with pytest.raises(ValueError, match="deadline must be positive"):
        strategies.OuterServer(deadline=0)
    server.close()
    a._patience = 0.0
    with pytest.raises(RendezvousError, match=r"does not answer the group 'a': .* Go on training and exchange later"):
        a.exchange({"w": np.ones(3, np.float32)})
