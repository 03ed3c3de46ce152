"""Manager: the checkpoints of a training run: when to save, which to keep, and which to restore."""

import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

from shardwise.checkpoints.group import Group
from shardwise.checkpoints.location import MANIFEST, Location, location_of
from shardwise.checkpoints.manifest import Manifest, check_metadata
from shardwise.checkpoints.preemption import Preemption
from shardwise.checkpoints.restore import restore
from shardwise.checkpoints.retention import Retention
from shardwise.checkpoints.save import Save, save
from shardwise.errors import CheckpointError, CorruptCheckpoint

_NAME = re.compile(r"step-(\d+)")


@final
@dataclass(frozen=True)
class Restored:
    """What `Manager.restore` returns.

    Attributes:
        step: the step that was restored.
        tree: the pytree.
        metrics: the metrics that were saved with it.
        metadata: the metadata that was saved with it, such as the state of a data iterator.
    """

    step: int
    tree: Any
    metrics: Mapping[str, float]
    metadata: Mapping[str, Any]


@final
class Manager:
    """The checkpoints of a training run, in one folder, one for each saved step.

    Args:
        folder: the folder or URL, which is created if it does not exist.
        every_steps: save the steps that are multiples of it.
        every_minutes: save when the last save is this long ago.
        keep_last: keep this many of the latest steps. Without any of the `keep_` arguments, all steps are kept.
        keep_every: keep the steps that are multiples of it.
        keep_best: keep this many of the best steps, by `metric`.
        metric: the name of the metric that says which step is best.
        is_larger_better: whether larger values of the metric are better.
        save_on_sigterm: whether a SIGTERM to any process makes all of them save the step that they have reached;
            afterwards `stopping` is true.
        processes: the numbers of the processes that use this manager, if these are not all: for example those that
            survived the death of another. `save_on_sigterm` must then be False.
        timeout: how many seconds to wait for other processes.

    Raises:
        CheckpointError: if the folder cannot be created or written.
        ValueError: if the arguments contradict each other.

    Example:
        >>> manager = jax.checkpoints.Manager(folder / "run", every_steps=10, keep_last=2, save_on_sigterm=False)
        >>> for step in range(40):
        ...     saved = manager.save(step, {"w": jnp.full(3, step)})
        >>> manager.close()
        >>> manager.steps()
        [20, 30]
        >>> manager.restore({"w": jnp.zeros(3, int)}).tree["w"]
        Array([30, 30, 30], dtype=int32)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        is_larger_better: bool = False,
        save_on_sigterm: bool = True,
        processes: Sequence[int] | None = None,
        timeout: float = 600,
    ):
        if processes is not None and save_on_sigterm:
            raise ValueError("processes needs save_on_sigterm=False: XLA agrees on a step with all processes")
        if every_steps is not None and every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, not {every_steps}")
        self._location = location_of(folder)
        self._every_steps = every_steps
        self._every_seconds = None if every_minutes is None else 60 * every_minutes
        self._retention = Retention(keep_last, keep_every, keep_best, metric, is_larger_better)
        self._timeout = timeout
        self._last_time = time.monotonic()
        self._pending: Save | None = None
        self._processes = processes
        self._group = Group(f"manager of {self._location}", timeout, processes)
        self._check_folder()
        self.stopping = False
        self._preemption = Preemption() if save_on_sigterm else None
        if self._preemption is not None:
            self._preemption.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_folder(self) -> None:
        """Create the folder, write a file to it, and delete what interrupted saves left."""
        error = None
        if self._group.index == 0:
            try:
                self._location.prepare()
                self._location.check_writable()
                self._location.clean()
            except CheckpointError as failure:
                error = failure
        self._group.agree(error)

    def steps(self) -> list[int]:
        """Return the saved steps, in ascending order.

        Returns:
            The steps of the checkpoints that are committed.
        """
        matches = map(_NAME.fullmatch, self._location.children())
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> int | None:
        """Return the latest saved step.

        Returns:
            The step, or None if there is none.
        """
        return max(self.steps(), default=None)

    def save(
        self,
        step: int,
        tree: Any,
        *,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> Save | None:
        """Save a step, if it is due. Every process calls it after each step.

        Args:
            step: the number of the step.
            tree: the pytree to save.
            metrics: numbers by name, for `keep_best`.
            metadata: a JSON object to save beside it, such as the state of a data iterator.
            force: whether to save in any case.

        Returns:
            The save that is being written, or None if the step is not due.

        Raises:
            CheckpointError: if it cannot be saved, or if an earlier save of this manager has failed.
        """
        is_last = self._preemption is not None and self._preemption.reached(step)
        if not (is_last or force or self._is_due(step)):
            return None
        self.wait()
        values = {name: float(value) for name, value in (metrics or {}).items()}
        content = {"step": step, "metrics": {name: value.hex() for name, value in values.items()}}
        content["metadata"] = check_metadata(metadata or {})
        target = self._location.child(f"step-{step}")
        started = save(
            str(target),
            tree,
            metadata=content,
            processes=self._processes,
            timeout=self._timeout,
            after_commit=self._prune,
        )
        self._pending = started
        self._last_time = time.monotonic()
        if is_last:
            self.wait()
            self.stopping = True
        return started

    def _is_due(self, step: int) -> bool:
        if self._every_steps is not None and step and step % self._every_steps == 0:
            return True
        if self._every_seconds is None:
            return False
        is_due = time.monotonic() - self._last_time >= self._every_seconds
        return bool(self._group.exchange(is_due)[0])  # clocks differ: process 0 decides

    def restore(self, like: Any = None, *, step: int | None = None, **options: Any) -> Restored:
        """Restore a step.

        Args:
            like: the pytree whose structure, types and shardings the result has, as for `restore`.
            step: the step; by default the latest. If that is corrupt, a warning names it, and the one before is
                restored.
            options: further arguments of `restore`.

        Returns:
            The step, the pytree, and the metrics and metadata that were saved with it.

        Raises:
            CheckpointError: if there is no step, or if none can be read.
            CheckpointMismatch: if the checkpoint differs from `like`.
        """
        candidates = self.steps()[::-1] if step is None else [step]
        for number in candidates:
            location = self._location.child(f"step-{number}")
            restored, error = None, None
            try:
                restored = restore(str(location), like, **options)
            except CorruptCheckpoint as failure:
                if step is not None:
                    raise
                error = failure
            failures = [message for message in self._group.exchange(None if error is None else str(error)) if message]
            if not failures:
                metrics, metadata = _read_content(location)
                return Restored(number, restored, metrics, metadata)
            warnings.warn(f"step {number} is skipped, and the one before is restored: {failures[0]}", stacklevel=2)
        found = "none can be read" if candidates else "there is none"
        raise CheckpointError(f"{self._location} has no step to restore: {found}")

    def wait(self) -> None:
        """Wait until the last save is committed.

        Raises:
            CheckpointError: if it could not be written.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()

    def close(self) -> None:
        """Wait until the last save is committed, and handle SIGTERM as before.

        Raises:
            CheckpointError: if it could not be written.
        """
        if self._preemption is not None:
            self._preemption.uninstall()
        self.wait()

    def _prune(self) -> None:
        """Delete the steps that are not kept. Process 0 calls it after each commit."""
        if self._retention == Retention():
            return
        metrics = {}
        for step in self.steps():
            try:
                metrics[step] = _read_content(self._location.child(f"step-{step}"))[0]
            except CheckpointError:  # it is corrupt; the user decides what becomes of it
                continue
        for step in self._retention.obsolete(metrics):
            self._location.child(f"step-{step}").delete()


def _read_content(location: Location) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the metrics and the metadata of a step."""
    data = location.data()
    content = None if data is None else data.read(MANIFEST)
    if content is None:
        raise CheckpointError(f"there is no checkpoint at {location}")
    saved = Manifest.decode(content, f"{location}/{MANIFEST}").metadata
    metrics = {name: float.fromhex(value) for name, value in saved.get("metrics", {}).items()}
    return metrics, dict(saved.get("metadata", {}))
