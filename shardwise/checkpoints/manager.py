"""Manager: the checkpoints of a training run: when to save, which steps to keep, and which step to restore."""

import logging
import numbers
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, final

from shardwise.checkpoints.identity import check_unchanged
from shardwise.checkpoints.location import Location, location_of
from shardwise.checkpoints.manifest import check_metadata
from shardwise.checkpoints.metrics import checked_metrics, decode_metrics, encode_metrics
from shardwise.checkpoints.preemption import Preemption
from shardwise.checkpoints.read import Reader, open_manifest
from shardwise.checkpoints.restore import restore
from shardwise.checkpoints.retention import Retention, check_count
from shardwise.checkpoints.save import Save, start_save
from shardwise.checkpoints.selection import Selection, missing_step, select_step
from shardwise.checkpoints.snapshot import take_snapshot
from shardwise.checkpoints.steps import checked_step, list_steps, step_name
from shardwise.checkpoints.superseded import SupersededSteps
from shardwise.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint
from shardwise.runtime.group import Group

_MOST_DELETIONS = 20  # the most latest steps in succession that may be deleted while they are read

_log = logging.getLogger("shardwise")


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
        read_only: whether this manager only lists and restores steps, for example of a run that another program saves.
            It creates, writes and deletes nothing, so the folder may be read-only. It ignores SIGTERM.
        every_steps: save the steps that are multiples of it.
        every_minutes: save when the last save is this long ago.
        keep_last: keep this many of the latest steps. Without any of the `keep_` arguments, all steps are kept.
        keep_every: keep the steps that are multiples of it.
        keep_best: keep this many of the best steps, by `metric`.
        metric: the name of the metric by which steps are compared.
        is_larger_better: whether larger values of the metric are better.
        save_on_sigterm: whether a SIGTERM to any process makes all of them save the step that they have reached;
            afterwards `stopping` is true. In a program of one process, a handler of SIGTERM that the program installed
            before is called too, and `close` raises its exceptions. With several processes, XLA handles the signal
            until all managers are closed.
        processes: the ranks of the processes that use this manager, if not all: for example the survivors of the death
            of another. `save_on_sigterm` must then be False.
        timeout: how many seconds to wait for a process that neither answers nor reads nor writes; by default, the
            `peer_timeout` of `distributed.initialize`.

    Raises:
        CheckpointError: if the folder cannot be created or written.
        PeerFailure: if another process fails, or does not open the manager within the timeout.
        ValueError: if an argument is invalid, or if arguments contradict each other.

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
        read_only: bool = False,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        is_larger_better: bool = False,
        save_on_sigterm: bool = True,
        processes: Sequence[int] | None = None,
        timeout: float | None = None,
    ):
        saving = {"every_steps": every_steps, "every_minutes": every_minutes}
        keeping = {"keep_last": keep_last, "keep_every": keep_every, "keep_best": keep_best, "metric": metric}
        if read_only and (passed := [name for name, value in (saving | keeping).items() if value is not None]):
            raise ValueError(f"read_only=True needs no {', '.join(passed)}: such a manager neither saves nor deletes")
        if processes is not None and save_on_sigterm and not read_only:
            raise ValueError("processes needs save_on_sigterm=False: XLA agrees on a step with all processes")
        check_count("every_steps", every_steps)
        if every_minutes is not None and not (isinstance(every_minutes, numbers.Real) and every_minutes >= 0):
            raise ValueError(f"every_minutes must be a number that is at least 0, not {every_minutes!r}")
        self._location = location_of(folder)
        self._read_only = read_only
        self._every_steps = every_steps
        self._every_seconds = None if every_minutes is None else 60 * every_minutes
        self._retention = Retention(keep_last, keep_every, keep_best, metric, is_larger_better)
        self._timeout = timeout
        self._last_time = time.monotonic()
        self._pending: Save | None = None
        self._processes = processes
        self._metrics: dict[int, Mapping[str, float] | None] = {}  # step → metrics; None if they cannot be read
        self._superseded = self._pending_superseded = SupersededSteps()
        self._prune_failures: list[str] = []  # the failures that no warning has reported
        self._group = Group(f"manager of {self._location}", timeout, processes)
        if not read_only:
            self._check_folder()
        self.stopping = False
        self._preemption = Preemption() if save_on_sigterm and not read_only else None
        if self._preemption is not None:
            self._preemption.install()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_folder(self) -> None:
        """Create the folder, write a file to it, and delete the remains of interrupted saves."""

        def prepare() -> None:
            if self._group.index == 0:
                self._location.prepare()
                self._location.check_writable()
                self._location.clean()

        self._group.gather(prepare)

    def steps(self) -> list[int]:
        """Return the saved steps that this process sees, in ascending order.

        Returns:
            The steps of the committed checkpoints, except checkpoints that were set aside.
        """
        return list_steps(self._location)

    def latest(self) -> int | None:
        """Return the latest saved step. Every process calls it, like `save` and `restore`.

        Returns:
            The latest step that any process sees, the same in all processes; None if there is none.

        Raises:
            CheckpointError: if a process cannot list the folder.
            PeerFailure: if another process fails, or does not call it within the timeout.
        """
        listings = self._group.gather(self.steps)
        return max((step for listing in listings for step in listing), default=None)

    def save(
        self,
        step: int,
        tree: object,
        *,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> Save | None:
        """Save a step, if it is due. Every process calls it after each step.

        Args:
            step: the step, a nonnegative integer.
            tree: the pytree to save.
            metrics: numbers by name, for `keep_best`.
            metadata: a JSON object to save with it, such as the state of a data iterator.
            force: whether to save even if the step is not due.

        Returns:
            The save that is being written, or None if the step is not due.

        Raises:
            CheckpointError: if it cannot be saved, if an earlier save of this manager has failed, or if the manager is
                read-only.
            PeerFailure: if another process fails, or does not save this step within the timeout; the error names it.
            TypeError: if the step is not an integer, or if a metric is not a number.
            ValueError: if the step is negative.
        """
        if self._read_only:
            raise CheckpointError(f"{self._location} is open with read_only=True: open a Manager without it to save")
        step = checked_step(step)
        is_last = self._preemption is not None and self._preemption.has_reached_last_step()
        if not (is_last or force or self._is_due(step)):
            return None
        self.wait()
        values = checked_metrics(metrics or {})
        content = {"step": step, "metrics": encode_metrics(values), "metadata": check_metadata(metadata or {})}
        superseded = self._superseded
        started = start_save(
            str(self._step_location(step)),
            lambda process, chunk_bytes: take_snapshot(tree, process, chunk_bytes),
            content,
            processes=self._processes,
            timeout=self._timeout,
            replaces=superseded.includes(step) or self._step_location(step).has_remains(),
            before_commit=lambda: superseded.set_aside(self._location, step),
            after_commit=lambda: self._prune(step, values),
        )
        self._pending, self._pending_superseded = started, superseded
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
        return bool(self._group.exchange(is_due)[0])  # process 0 decides, because clocks differ

    def restore(self, like: object = None, *, step: int | None = None, **options: Any) -> Restored:
        """Restore a step.

        Args:
            like: the pytree whose structure, types and shardings the result has, as for `restore`.
            step: the step; by default the latest. If the latest is corrupt, a warning names it, and the step before it
                is restored; if another program deletes it meanwhile, the then latest step is restored. The next save
                sets aside corrupt steps and, if it goes back behind them, the steps after `step`.
            options: further arguments of `restore`.

        Returns:
            The step, the pytree, and the metrics and metadata that were saved with it. All processes restore the same
            checkpoint.

        Raises:
            CheckpointError: if there is no step, if none can be read, or if the processes do not see the same
                checkpoint.
            CheckpointNotFound: if there is no such step, or if it was deleted while it was read.
            CorruptCheckpoint: if the requested step is corrupt.
            CheckpointMismatch: if the checkpoint differs from `like`.
            PeerFailure: if another process fails, or does not restore within the timeout; the error names it.
        """
        wanted = self._group.gather(lambda: self._wanted_step(step))[self._group.index]
        corrupt: dict[int, str] = {}
        deletions = 0
        while (selected := select_step(self._group, self._location, wanted, corrupt)) is not None:
            restored, outcomes = self._restore_selected(selected, like, options)
            message = next((message for _, message in outcomes if message), "")
            if any(is_deleted for is_deleted, _ in outcomes):
                deletions += 1
                if wanted is not None or deletions == _MOST_DELETIONS:
                    raise CheckpointNotFound(message)
            elif message and wanted is not None:
                raise CorruptCheckpoint(message)
            elif message:
                corrupt[selected.step] = selected.identity
                warnings.warn(
                    f"step {selected.step} is skipped, and the one before is restored: {message}", stacklevel=2
                )
            else:
                assert restored is not None
                later = {each for each in selected.steps if each > selected.step} if wanted is not None else ()
                self._superseded = SupersededSteps(frozenset(later), corrupt)
                return restored
        reason = "none can be read" if corrupt else "there is none"
        raise CheckpointError(f"{self._location} has no step to restore: {reason}")

    def _wanted_step(self, step: int | None) -> int | None:
        """Return a requested step as a Python integer."""
        try:
            return None if step is None else checked_step(step)
        except (TypeError, ValueError):
            raise missing_step(self._location, step, self.steps()) from None

    def _restore_selected(
        self, selected: Selection, like: object, options: Mapping[str, Any]
    ) -> tuple[Restored | None, list[tuple[bool, str]]]:
        """Restore the step that all processes have selected.

        Returns:
            The result in this process; and for each process, whether the step was deleted meanwhile, and why it could
            not be restored, or "".
        """
        restored: Restored | None = None
        location = self._step_location(selected.step)

        def attempt() -> tuple[bool, str]:
            nonlocal restored
            try:
                with check_unchanged(location, selected.identity):
                    reader = Reader(str(location))
                    metrics = decode_metrics(reader.manifest, reader.path)
                    metadata = dict(reader.manifest.metadata.get("metadata", {}))
                    restored = Restored(selected.step, restore(reader, like, **options), metrics, metadata)
            except CheckpointNotFound as failure:
                return True, str(failure)
            except CorruptCheckpoint as failure:
                return False, str(failure)
            return False, ""

        outcomes = self._group.gather(attempt)
        return restored, outcomes

    def wait(self) -> None:
        """Wait until the last save is committed.

        A warning names the old steps that could not be deleted afterwards.

        Raises:
            CheckpointError: if it could not be written.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.wait()
            if self._superseded is self._pending_superseded:
                self._superseded = SupersededSteps()
        failures, self._prune_failures = self._prune_failures, []
        for failure in failures:
            warnings.warn(failure, stacklevel=2)

    def close(self) -> None:
        """Wait until the last save is committed. After the last manager is closed, SIGTERM is handled as before.

        A SIGTERM after the last call of `save` then takes effect: by default, it ends the process.

        Raises:
            CheckpointError: if it could not be written.
            BaseException: the exception of the program's own SIGTERM handler, if it raised one.
        """
        try:
            self.wait()
        finally:
            if self._preemption is not None:
                notifier, self._preemption = self._preemption, None
                notifier.uninstall()

    def _step_location(self, step: int) -> Location:
        return self._location.child(step_name(step))

    def _prune(self, committed: int, metrics: Mapping[str, float]) -> None:
        """Delete the steps that are not kept. Process 0 calls it after each commit, with the metrics of that step.

        The step is already saved, so failures are only warnings.
        """
        if self._retention == Retention():
            return
        self._metrics[committed] = metrics
        try:
            known = {step: self._metrics_of(step) for step in self.steps()}
        except CheckpointError as error:
            self._report_prune_failure(f"step {committed} is saved, but no old steps can be deleted: {error}")
            return
        readable = {step: each for step, each in known.items() if each is not None}
        for step in self._retention.obsolete(readable, committed):
            try:
                self._step_location(step).delete()
                del self._metrics[step]
            except CheckpointError as error:
                self._report_prune_failure(
                    f"step {committed} is saved, but the old step {step} cannot be deleted: {error}"
                )

    def _report_prune_failure(self, text: str) -> None:
        """Log a failure now, in the background, and let the next call of `wait` warn about it."""
        _log.warning("%s", text)
        self._prune_failures.append(text)

    def _metrics_of(self, step: int) -> Mapping[str, float] | None:
        """Return the metrics of a step, cached; None if they cannot be read, so that the user can decide what to do."""
        if step not in self._metrics:
            location = self._step_location(step)
            try:
                self._metrics[step] = decode_metrics(open_manifest(location)[1], str(location))
            except CheckpointError:
                self._metrics[step] = None
        return self._metrics[step]
