"""Manager: the checkpoints of a training run: when to save, which to keep, and which to restore."""

import numbers
import operator
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

from shardwise.checkpoints.location import Location, location_of
from shardwise.checkpoints.manifest import Manifest, check_metadata
from shardwise.checkpoints.preemption import Preemption
from shardwise.checkpoints.read import Reader, open_manifest
from shardwise.checkpoints.restore import restore
from shardwise.checkpoints.retention import Retention, check_count
from shardwise.checkpoints.save import Save, save
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.runtime.group import Group

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
        ValueError: if an argument is not valid, or if arguments contradict each other.

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
        check_count("every_steps", every_steps)
        if every_minutes is not None and not (isinstance(every_minutes, numbers.Real) and every_minutes >= 0):
            raise ValueError(f"every_minutes must be a number that is at least 0, not {every_minutes!r}")
        self._location = location_of(folder)
        self._every_steps = every_steps
        self._every_seconds = None if every_minutes is None else 60 * every_minutes
        self._retention = Retention(keep_last, keep_every, keep_best, metric, is_larger_better)
        self._timeout = timeout
        self._last_time = time.monotonic()
        self._pending: Save | None = None
        self._processes = processes
        self._metrics: dict[int, Mapping[str, float] | None] = {}  # of each step; None if it cannot be read
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
            step: the number of the step, from 0 on.
            tree: the pytree to save.
            metrics: numbers by name, for `keep_best`.
            metadata: a JSON object to save beside it, such as the state of a data iterator.
            force: whether to save in any case.

        Returns:
            The save that is being written, or None if the step is not due.

        Raises:
            CheckpointError: if it cannot be saved, or if an earlier save of this manager has failed.
            TypeError: if the step is not an integer, or if a metric is not a number.
            ValueError: if the step is negative.
        """
        step = _checked_step(step)
        is_last = self._preemption is not None and self._preemption.reached(step)
        if not (is_last or force or self._is_due(step)):
            return None
        self.wait()
        values = _as_floats(metrics or {})
        content = {"step": step, "metrics": {name: value.hex() for name, value in values.items()}}
        content["metadata"] = check_metadata(metadata or {})
        started = save(
            str(self._step_location(step)),
            tree,
            metadata=content,
            processes=self._processes,
            timeout=self._timeout,
            after_commit=lambda: self._prune(step, values),
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
            restored: Restored | None = None
            corruption: str | None = None
            error: Exception | None = None
            try:
                restored = self._restore_step(number, like, options)
            except CorruptCheckpoint as failure:
                corruption = str(failure)
                error = failure if step is not None else None
            except Exception as failure:
                error = failure
            self._group.agree(error)
            failures = [message for message in self._group.exchange(corruption) if message]
            if restored is not None and not failures:
                return restored
            warnings.warn(f"step {number} is skipped, and the one before is restored: {failures[0]}", stacklevel=2)
        found = "none can be read" if candidates else "there is none"
        raise CheckpointError(f"{self._location} has no step to restore: {found}")

    def _restore_step(self, step: int, like: Any, options: Mapping[str, Any]) -> Restored:
        if step not in (steps := self.steps()):
            saved = f"the last ones that it has are {', '.join(map(str, steps[-5:]))}" if steps else "it has none"
            raise CheckpointError(f"{self._location} has no step {step!r}: {saved}")
        reader = Reader(str(self._step_location(step)))
        metadata = dict(reader.manifest.metadata.get("metadata", {}))
        return Restored(step, restore(reader, like, **options), _metrics(reader.manifest, reader.path), metadata)

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

    def _step_location(self, step: int) -> Location:
        return self._location.child(f"step-{step}")

    def _prune(self, committed: int, metrics: Mapping[str, float]) -> None:
        """Delete the steps that are not kept. Process 0 calls it after each commit, with the metrics of that step."""
        if self._retention == Retention():
            return
        self._metrics[committed] = metrics
        known = {step: self._metrics_of(step) for step in self.steps()}
        for step in self._retention.obsolete({step: each for step, each in known.items() if each is not None}):
            self._step_location(step).delete()
            del self._metrics[step]

    def _metrics_of(self, step: int) -> Mapping[str, float] | None:
        """Return the metrics of a step, which are read once; None if it cannot be read: the user decides what to do."""
        if step not in self._metrics:
            location = self._step_location(step)
            try:
                self._metrics[step] = _metrics(open_manifest(location)[1], str(location))
            except CheckpointError:
                self._metrics[step] = None
        return self._metrics[step]


def _checked_step(step: int) -> int:
    """Return the number of a step as a Python integer."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"a step is an integer, not {step!r}") from None
    if number < 0:
        raise ValueError(f"steps are numbered from 0 on, not {number}")
    return number


def _as_floats(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as Python floats."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics are a dict of numbers by name, not {metrics!r}")
    values = {}
    for name, value in metrics.items():
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the metric {name!r} is not a number: {error}") from None
    return values


def _metrics(manifest: Manifest, path: str) -> dict[str, float]:
    """Return the metrics that were saved with the step at `path`."""
    try:
        return {name: float.fromhex(value) for name, value in manifest.metadata.get("metrics", {}).items()}
    except (AttributeError, TypeError, ValueError):
        raise CheckpointError(f"{path} was not saved by a Manager: its metadata has other metrics") from None
