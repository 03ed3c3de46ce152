"""Cases: a group of several processes that exchanges outer gradients with an OuterServer in the first of them."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, strategies
from shardwise.errors import RendezvousError
from shardwise.runtime.group import Group


def case_a_group_of_several_processes_exchanges():
    """The shards of both processes are one outer gradient, and both get the same parameters, sharded as before."""
    is_first = sw.process_index() == 0
    server = strategies.OuterServer(strategies.OuterMomentum(0.5, 0.5)) if is_first else None
    ticket = Group("ticket").exchange(server.ticket if server else "")[0]
    sharding = sw.NamedSharding(sw.make_mesh((sw.device_count(),), ("data",)), P("data"))
    start = np.arange(8, dtype=np.float32)
    params = {"sharded": sw.device_put(start, sharding), "replicated": sw.device_put(start[:3], sharding.replicated)}
    exchange = strategies.OuterExchange(ticket, "pair", patience=1.0)
    params = exchange.join(params)
    outer, velocity = start.copy(), np.zeros(8, np.float32)
    for _ in range(3):
        params = sw.tree.map(lambda x: x * 0.5, params)
        params = exchange.exchange(params)
        gradient = outer * 0.5
        velocity = 0.5 * velocity + gradient
        outer = outer - 0.5 * (gradient + 0.5 * velocity)
        for name, expected in (("sharded", outer), ("replicated", outer[:3])):
            for shard in params[name].addressable_shards:
                np.testing.assert_allclose(np.asarray(shard.data), expected[shard.index], rtol=1e-5)
    assert params["sharded"].sharding == sharding and exchange.version == 3
    if server:
        server.close()
    Group("closed").exchange(0)
    with pytest.raises(RendezvousError, match="does not answer the group 'pair'"):
        exchange.exchange(params)
    exchange.close()
