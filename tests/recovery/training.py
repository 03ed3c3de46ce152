"""A training program that recovers from failures, and the faults that tests let happen in it.

training.py FOLDER [--steps N] [--pause SECONDS] [--every N] [--from-disk] [--faults FAULT ...]

FOLDER has a folder `disk` with checkpoints, and one file for each fault that has happened. A fault is KIND@STEP:RANK:
it happens once, in the process that has the rank when it begins the step. KIND.POINT@GENERATION:RANK happens in the
middle of a snapshot or of a recovery, in the process that has the rank in this generation; POINT is one of `POINTS`. A
file `now-NUMBER` in FOLDER with KIND:RANK is a fault that happens at the next step, and one with KIND.POINT:RANK at the
next time that the process with the rank reaches the point. The fault `disk` lasts until a checkpoint is due, and `fail`
happens whenever a process with the rank begins the step.

Each process prints its losses, and the number of programs that it has compiled in this call of the function. Each step
takes PAUSE seconds or more. With --from-disk, the program does not recover: it restores the newest checkpoint on disk
when it is started again.
"""

import argparse
import os
import resource
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import peer_restore, peer_snapshots
from shardwise.errors import CheckpointError, CheckpointNotFound
from shardwise.processes.variables import NODE_RANK
from shardwise.runtime import cluster, executable, gloo_connections
from shardwise.runtime.generations import generations
from shardwise.runtime.process_set_registry import process_sets
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

FEATURES = 24
SAVED_STEPS = 10  # a checkpoint on disk is saved every so many steps
SLOW_TIME = 0.5  # seconds for which a slow process sleeps in each step
compiled: list[str] = []
slow_steps: list[float] = []  # seconds for which this process sleeps in each step


def count_compilations():
    """Let `compiled` list the modules that XLA compiles in this process."""
    compile_text = executable.compile_text

    def compile_and_count(text, *arguments):
        compiled.append(text.partition("{")[0])
        return compile_text(text, *arguments)

    executable.compile_text = compile_and_count


def create(mesh):
    """Return the data, replicated, and the parameters with their momentum, sharded, and values of each process."""
    rng = np.random.default_rng(0)

    def place(value, spec):
        return sw.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])

    data = place(rng.random((16, FEATURES), np.float32), P()), place(rng.random(16, np.float32), P())
    state = {name: place(np.zeros(FEATURES, np.float32), P("data")) for name in ("weights", "momentum")}
    return data, {**state, "next": 0, "host": np.zeros(2)}


@sw.jit
def train_step(state, x, y):
    loss, gradient = sw.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["weights"])
    momentum = 0.9 * state["momentum"] + gradient
    return {"weights": state["weights"] - 0.02 * momentum, "momentum": momentum}, loss


def raise_error():
    raise ValueError("an injected error")


def kill_coordinators():
    """Kill the coordinator of this generation, and the one that waits for the next."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            is_sibling = f"PPid:\t{os.getppid()}\n" in status.read_text()
            if is_sibling and b"coordinator_process" in status.with_name("cmdline").read_bytes():
                os.kill(int(status.parent.name), signal.SIGKILL)


def kill_launcher():
    """Kill the launcher of this process, whose guardian then kills all processes of the node."""
    os.kill(os.getppid(), signal.SIGKILL)


def kill_node():
    """Kill the launcher of this process, unless it leads the job."""
    if os.environ[NODE_RANK] != "0":
        kill_launcher()


def drop_connections():
    """End all TCP connections of this process: to the coordinator, and Gloo's to other processes."""
    for connection in gloo_connections._sockets():
        if not gloo_connections._listens(connection):
            with suppress(OSError):  # not connected
                connection.shutdown(socket.SHUT_RDWR)


def drop_collectives():
    """End the connections of Gloo to other processes."""
    process_sets.gloo.close_connections()


def fill_disk():
    """Let all writes of this process to files fail from now on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def empty_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def sleep_in_steps():
    """Let every step of this process take longer from now on."""
    slow_steps.append(SLOW_TIME)


KINDS = {
    "node": kill_node,
    "launcher": kill_launcher,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": raise_error,
    "fail": raise_error,
    "coordinator": kill_coordinators,
    "drop": drop_connections,
    "gloo": drop_collectives,
    "disk": fill_disk,
    "slow": sleep_in_steps,
}
# Functions at whose beginning a fault happens: while blocks are sent to the partner, while processes join a generation,
# while a snapshot is chosen, and while it is fetched.
POINTS = {
    "send": (peer_snapshots._Transfer, "_send_and_receive"),
    "join": (cluster._Cluster, "_create_clients"),
    "choose": (peer_restore.PeerRestore, "choose_snapshot"),
    "fetch": (peer_restore.PeerRestore, "fetch_blocks"),
}


class Faults:
    """The faults of a run. Each happens once, which a file in the folder records."""

    def __init__(self, folder, faults):
        self._folder, self._faults = Path(folder), faults
        self._full_steps = 0  # that this process has begun with a full disk
        for point, (owner, name) in POINTS.items():
            self._wrap(point, owner, name)

    def _wrap(self, point, owner, name):
        function = getattr(owner, name)

        def wrapper(*arguments):
            rank = int(os.environ["SHARDWISE_PROCESS_ID"])
            self._happen(lambda kind, place: kind.endswith(f".{point}") and place == f"{generations.number}:{rank}")
            self._obey(f".{point}:{rank}")
            return function(*arguments)

        setattr(owner, name, wrapper)

    def begin_step(self, step):
        """Let the faults of this step happen."""
        if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0:
            self._full_steps += 1
            if self._full_steps > SAVED_STEPS + 1:
                self._full_steps = 0
                empty_disk()
        rank = sw.process_index()
        self._happen(lambda kind, place: "." not in kind and place == f"{step}:{rank}")
        self._obey(f":{rank}")

    def _obey(self, place):
        """Let the faults happen that a command orders for a place: `:RANK` or `.POINT:RANK`."""
        for command in self._folder.glob("now-*"):
            with suppress(FileNotFoundError):  # another process has obeyed it
                text = command.read_text()
                if text.endswith(place) and (kind := text.removesuffix(place)) in KINDS:
                    command.rename(command.with_name(f"happened-{command.name}"))
                    KINDS[kind]()

    def _happen(self, is_due):
        for fault in self._faults:
            kind, _, place = fault.partition("@")
            if is_due(kind, place) and not (mark := self._folder / fault).exists():
                if kind != "fail":
                    mark.touch()  # a full disk has room for it
                KINDS[kind.partition(".")[0]]()


def restore(snapshots, manager, state):
    """Return the newest state, from memory, or from the disk if it is lost there; None if there is none."""
    if snapshots is None:
        return None if manager.latest() is None else manager.restore(state)
    try:
        return snapshots.resume(state)
    except CheckpointNotFound as error:
        print(f"lost: {error}", flush=True)
        if manager.latest() is None:
            raise
        return manager.restore(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--from-disk", action="store_true")
    parser.add_argument("--faults", nargs="*", default=[])
    options = parser.parse_args()
    count_compilations()
    faults = Faults(options.folder, options.faults)

    def train(snapshots):
        compiled.clear()
        mesh = Mesh(np.array(sw.devices()), ("data",))
        (x, y), state = create(mesh)
        manager = checkpoints.Manager(Path(options.folder, "disk"), every_steps=SAVED_STEPS, keep_last=2)
        start = 0
        if (restored := restore(snapshots, manager, state)) is not None:
            start, state = restored.step + 1, restored.tree
            assert state["next"] == start and state["host"].tolist() == [restored.step] * 2, state
        place = f"rank {sw.process_index()} of {sw.process_count()}"
        print(f"{place} starts at step {start} at {time.time():.3f}", flush=True)
        print(f"threads: {len(os.listdir('/proc/self/task'))}", flush=True)
        for step in range(start, options.steps):
            faults.begin_step(step)
            time.sleep(options.pause + sum(slow_steps))
            arrays, loss = train_step({name: state[name] for name in ("weights", "momentum")}, x, y)
            loss_text = f"{float(loss).hex()} at {time.time():.3f}"
            print(f"step {step} loss {loss_text} compiled {len(compiled)}", flush=True)
            state = {**arrays, "next": step + 1, "host": np.full(2, float(step))}
            if snapshots is not None:
                snapshots.save(step, state)
            try:
                manager.save(step, state)
            except CheckpointError as error:
                print(f"not saved: {error}", flush=True)
        print(f"compiled {len(compiled)}: {compiled}", flush=True)
        with suppress(CheckpointError):
            manager.close()

    if options.from_disk:
        train(None)
    else:
        checkpoints.recover(train, every_steps=options.every)
    print("complete", flush=True)


if __name__ == "__main__":
    main()
