"""A group of the soak of groups: group_training.py TICKET FOLDER [--steps N] [--pause SECONDS] [--cut-off SECONDS]

It trains for N steps, exchanges outer gradients, and starts again, until it is ended. All groups are spares at first:
the server has their names. The batches depend on the name of the group and on the number of the update alone, so that
runs without faults are equal. Each update is printed with the loss of held-out data, and the file PID in FOLDER has the
name.

SIGUSR1 raises an exception in the main thread. SIGUSR2 cuts the process off for some seconds: its new connections fail,
and it serves none.
"""

import argparse
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import strategies
from shardwise.errors import RendezvousError
from shardwise.processes.secret_server import SecretServer

FEATURES, HIDDEN, ROWS = 16, 32, 256
PATIENCE = 0.2  # seconds: a group that is cut off goes on training


class Partition:
    """Cuts this process off from all others for some time."""

    def __init__(self, seconds):
        self._seconds, self._end = seconds, 0.0
        self._create_connection, self._verify = socket.create_connection, SecretServer._verify
        socket.create_connection = self._connect

        def serve(server, connection):
            time.sleep(self._rest)
            self._verify(server, connection)

        SecretServer._verify = serve

    def begin(self, *_):
        self._end = time.monotonic() + self._seconds

    @property
    def _rest(self):
        return max(0.0, self._end - time.monotonic())

    def _connect(self, *arguments, **options):
        if self._rest > 0:
            time.sleep(min(self._rest, PATIENCE))
            raise TimeoutError("cut off")
        return self._create_connection(*arguments, **options)


def raise_error(*_):
    raise ValueError("an injected error")


def data(rng, teacher):
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    noise = rng.normal(size=(ROWS, 1))  # so that the least loss is about 1
    return x, (np.tanh(x @ teacher).sum(1, keepdims=True) + noise).astype(np.float32)


@sw.jit
def evaluate(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


@sw.jit
def train_step(params, x, y):
    gradients = sw.grad(evaluate)(params, x, y)
    return {name: params[name] - 0.02 * gradients[name] for name in params}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ticket")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--cut-off", type=float, default=5.0)
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, raise_error)
    signal.signal(signal.SIGUSR2, Partition(options.cut_off).begin)
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(FEATURES, 4)).astype(np.float32)
    held_out = data(rng, teacher)
    params = {
        "in": jnp.asarray(0.3 * rng.normal(size=(FEATURES, HIDDEN)), jnp.float32),
        "out": jnp.asarray(0.3 * rng.normal(size=(HIDDEN, 1)), jnp.float32),
    }
    float(evaluate(train_step(params, *held_out), *held_out))  # compiles, before there is a place
    exchange = strategies.OuterExchange(options.ticket, None, patience=PATIENCE)
    mark = options.folder / str(os.getpid())
    print(f"ready {os.getpid()}", flush=True)
    params = exchange.join(params)
    while True:
        mark.write_text(str(exchange.group))
        loss = float(evaluate(params, *held_out))
        print(f"group {exchange.group} update {exchange.version} loss {loss.hex()}", flush=True)
        batches = np.random.default_rng([int(exchange.group), exchange.version])
        has_exchanged = False
        while not has_exchanged:
            for _ in range(options.steps):
                params = train_step(params, *data(batches, teacher))
                time.sleep(options.pause)
            try:
                params = exchange.exchange(params)
                has_exchanged = True
            except RendezvousError as error:
                print(f"not exchanged: {error}", flush=True)


if __name__ == "__main__":
    main()
