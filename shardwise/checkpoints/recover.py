"""recover: run a training function again from the last snapshot whenever a process of the program fails."""

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

from shardwise.base.caches import clear_all
from shardwise.checkpoints.peer_snapshots import MoreProcesses, PeerSnapshots
from shardwise.errors import PeerFailure, ProgramMismatch, RendezvousError
from shardwise.processes.roster import RosterError
from shardwise.runtime.array import forget_signatures
from shardwise.runtime.client import clients
from shardwise.runtime.cluster import cluster
from shardwise.runtime.executable import compile_checks
from shardwise.runtime.generations import generations
from shardwise.runtime.group import Group
from shardwise.runtime.launched_process import join_next_generation

T = TypeVar("T")

_log = logging.getLogger("shardwise")


def recover(train: Callable[[PeerSnapshots], T], *, every_steps: int | None = None) -> T:
    """Run a training function, and run it again from the last snapshot after each failure of a process.

    `shardwise launch --spares N` starts the processes. If one of them dies, stops or raises an exception, a spare
    process takes its place, and all processes call `train` again, on new devices. Executables are kept: the programs
    are not compiled again. Without a spare, fewer processes continue, until another one is ready.

    Everything that refers to devices must be created in `train`: meshes, shardings, arrays and managers of checkpoints.

    Args:
        train: the function. It creates the state, restores the newest snapshot with `resume`, and saves each step.
        every_steps: save the steps that are multiples of it. By default, the interval is chosen so that snapshots
            take less than 1% of the time.

    Returns:
        The result of `train`, when all processes have returned from it.

    Raises:
        RuntimeError: if `shardwise launch --spares` did not start this process.
        RendezvousError: if the launcher cannot be reached, or refuses this process.
        DeviceMismatchError: if `train` uses an array or a mesh from before the failure.
        Exception: what `train` raises in this process, unless another process has failed before.

    Example:
        >>> jax.checkpoints.recover(lambda snapshots: None)
        Traceback (most recent call last):
        RuntimeError: recover needs processes that can be replaced: start the program with `shardwise launch --spares 1`
    """
    if not generations.are_possible:
        raise RuntimeError(
            "recover needs processes that can be replaced: start the program with `shardwise launch --spares 1`"
        )
    generations.is_recovering = True
    if clients.check_current not in compile_checks:
        compile_checks.append(clients.check_current)
    try:
        return _run_generations(train, every_steps)
    finally:
        generations.is_recovering = False


def _run_generations(train: Callable[[PeerSnapshots], T], every_steps: int | None) -> T:
    """Call the function in each generation, until it returns in all processes of one."""
    snapshots: PeerSnapshots | None = None
    reason = ""
    while True:
        try:
            if reason:
                join_next_generation(None if snapshots is None else snapshots.last_step, reason)
            clients.get()
            if snapshots is None:
                snapshots = PeerSnapshots(every_steps)
            elif reason:
                snapshots.join_again()
            result = train(snapshots)
            snapshots.wait()
            Group("end of recover").exchange(None)
            snapshots.close()
            return result
        except MoreProcesses as request:
            reason = str(request)
        except Exception as error:
            if not _is_consequence(error):
                raise
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, PeerFailure) else str(error)
        _leave(reason)


def _is_consequence(error: Exception) -> bool:
    """Return whether the failure of another process has caused an error, and not this process itself."""
    if isinstance(error, ProgramMismatch | RosterError):
        return False
    has_failures = cluster.member is not None and bool(cluster.member.failures)
    return isinstance(error, PeerFailure | RendezvousError) or has_failures


def _leave(reason: str) -> None:
    """Leave a generation that has failed, and drop what refers to its devices."""
    _log.info("leaving a generation: %s", reason)
    cluster.break_off(reason)
    cluster.leave_failed()
    clear_all()
    forget_signatures()
    gc.collect()
