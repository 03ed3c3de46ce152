"""Step: one run of a schedule, which computes the loss and the gradients of a batch."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.api.jit import jit
from shardwise.api.meshes.placement import block_until_ready, device_put
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.execute.transfer import transfer
from shardwise.parallel.float_leaves import split_floats
from shardwise.parallel.mpmd.stage_programs import StagePrograms
from shardwise.parallel.mpmd.task import BACKWARD, FORWARD, INPUT, Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule
from shardwise.parallel.mpmd.transfers import Transfers
from shardwise.runtime.array import empty_array

Microbatch = tuple[int, int]  # a stage and a microbatch
Replica = tuple[int, int]  # a stage and a rank that runs it


@final
@dataclass(eq=False)
class Step:
    """The state of a run.

    Attributes:
        schedule: the schedule.
        programs: the programs of each stage on each of its ranks.
        params: the parameters of each stage on each of its ranks that has a device in this process.
        boundary_types: for each stage, the types of its input.
        microbatch: returns the input of the first stage for a microbatch on a rank.
        targets: returns the further arguments of the last stage for a microbatch on a rank.
        transfers: sends arrays between ranks.
        totals: the sums of the gradients of each stage on each of its ranks; reduced after the last task.
        losses: for each rank, the losses of the microbatches whose last stage it runs.
        aux: for each microbatch whose last stage this process runs, the leaves of its auxiliary results.
    """

    schedule: TaskSchedule
    programs: dict[Replica, StagePrograms]
    params: dict[Replica, Any]
    boundary_types: Sequence[Any]
    microbatch: Callable[[int, int], Any]
    targets: Callable[[int, int], tuple[Any, ...]]
    transfers: Transfers
    totals: dict[Replica, list[Any]] = field(default_factory=dict)
    losses: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    aux: dict[int, list[Any]] = field(default_factory=dict)
    _saved: dict[Microbatch, tuple[Any, Any]] = field(default_factory=dict)  # the input and the vjp function
    _weights: dict[Microbatch, Callable[[list[Any]], list[Any]]] = field(default_factory=dict)
    _local: dict[str, list[Any]] = field(default_factory=dict)  # values that stay on their rank
    _gathered: dict[Replica, Any] = field(default_factory=dict)  # parameters as the programs read them
    _finished: dict[Replica, int] = field(default_factory=lambda: defaultdict(int))  # microbatches
    _last_results: dict[int, list[Any]] = field(default_factory=dict)  # of the last task of each rank

    def run(self, rank: int, task: Task) -> None:
        """Launch a task. Its operands may still be computed, but have been launched or are awaited here."""
        self._wait_for_rank(rank)
        key = task.stage, task.microbatch
        replica = task.stage, rank
        programs, params = self.programs[replica], self._gathered_params(replica)
        if task.kind != FORWARD and replica not in self.totals:
            self.totals[replica] = programs.zeros(params)
        if task.kind == FORWARD:
            results = self._run_forward(rank, task, programs, params)
        elif task.kind == BACKWARD:
            x, pull_back = self._saved.pop(key)
            cotangents = self._cotangents(rank, task)
            results, out = programs.backward(params, x, pull_back, cotangents, self.totals[replica])
            self.totals[replica] = results
            self._send_cotangents(task, out)
        elif task.kind == INPUT:
            x, pull_back = self._saved.pop(key)
            results, self._weights[key] = programs.input_gradient(params, x, pull_back, self._cotangents(rank, task))
            self._send_cotangents(task, results)
        else:
            self.totals[replica] = results = self._weights.pop(key)(self.totals[replica])
        if task.ends_activations:
            self._finished[replica] += 1
            if self._finished[replica] == self.schedule.microbatches_of[replica]:
                self.totals[replica] = results = programs.reduce(self.totals[replica])
                del self._gathered[replica]
        self._last_results[rank] = results

    def stacked_aux(self) -> Any:
        """Return the auxiliary results of all microbatches, stacked along a new dim 0, on the last stage's first rank.

        They are None if there are none, and have no shards here if that rank belongs to another process.
        """
        last, count = self.schedule.stages - 1, self.schedule.microbatches
        home = self.programs[last, self.schedule.rank_of[last, 0]]
        leaves, structure = tree_util.tree_flatten(home.types.aux)
        if not leaves:
            return home.types.aux
        types = [ArrayType(leaf.shape, leaf.dtype) for leaf in leaves]
        targets = [home.sharding(type.ndim) for type in types]
        for index in range(count):
            programs = self.programs[last, self.schedule.rank_of[last, index]]
            if programs is home:
                continue
            tag, sources = f"A{index}", [programs.sharding(type.ndim) for type in types]
            if index in self.aux:
                self.transfers.send(tag, self.aux[index], targets)
            if home.is_local:
                self.aux[index] = self.transfers.receive(tag, types, sources, targets)
        shardings = [NamedSharding(home.mesh, PartitionSpec(None, *target.spec)) for target in targets]
        if home.is_local:
            stacked = _stack([self.aux[index] for index in range(count)])
            arrays = [device_put(*pair) for pair in zip(stacked, shardings, strict=True)]
        else:
            stacked_types = [type.with_shape((count, *type.shape)) for type in types]
            arrays = [empty_array(*pair) for pair in zip(stacked_types, shardings, strict=True)]
        return tree_util.tree_unflatten(structure, arrays)

    def _gathered_params(self, replica: Replica) -> Any:
        """Return the parameters of a stage in the shardings in which its programs read them."""
        if replica not in self._gathered:
            leaves, structure = tree_util.tree_flatten(self.params[replica])
            self._gathered[replica] = tree_util.tree_unflatten(structure, self.programs[replica].gather(leaves))
        return self._gathered[replica]

    def _wait_for_rank(self, rank: int) -> None:
        """Wait for the last task of a rank on CPU devices.

        GPUs run programs in the order of their launches. XLA's CPU client runs all programs whose operands are ready at
        once: weight gradients would slow down the tasks that other ranks wait for, and more activations would be live.
        """
        results = self._last_results.pop(rank, [])
        if results and results[0].sharding.devices[0].platform == "cpu":
            block_until_ready(results)

    def _run_forward(self, rank: int, task: Task, programs: StagePrograms, params: object) -> list[Any]:
        """Launch a forward pass, send its results to the next stage, and return them."""
        stage, index = task.stage, task.microbatch
        is_last = stage == self.schedule.stages - 1
        if stage == 0:
            x = self.microbatch(rank, index)
        else:
            structure = tree_util.tree_structure(self.boundary_types[stage])
            x = tree_util.tree_unflatten(structure, self._receive(f"F{stage}.{index}", task, stage - 1, stage))
        y, aux, pull_back = programs.forward(params, x, self.targets(rank, index) if is_last else ())
        self._saved[stage, index] = x, pull_back
        results = tree_util.tree_leaves(y)
        if is_last:
            self.losses[rank].append(y)
            self.aux[index] = [transfer(leaf, programs.sharding(leaf.ndim)) for leaf in tree_util.tree_leaves(aux)]
        else:
            self._send(f"F{stage + 1}.{index}", task, stage + 1, results)
        return results

    def _cotangents(self, rank: int, task: Task) -> list[Any]:
        """Return the cotangents of the stage's result."""
        stage, index = task.stage, task.microbatch
        if stage + 1 < self.schedule.stages:
            return self._receive(f"B{stage}.{index}", task, stage + 1, stage + 1)
        loss = self.losses[rank][-1]
        share = np.asarray(1 / self.schedule.microbatches, loss.dtype)
        return [device_put(share, self.programs[stage, rank].sharding(0))]

    def _send_cotangents(self, task: Task, cotangents: list[Any]) -> None:
        if task.stage > 0:
            self._send(f"B{task.stage - 1}.{task.microbatch}", task, task.stage - 1, cotangents)

    def _send(self, tag: str, task: Task, stage: int, leaves: list[Any]) -> None:
        """Send results of a task to the rank that runs another stage of the microbatch."""
        source, target = (self.schedule.rank_of[each, task.microbatch] for each in (task.stage, stage))
        if target == source:
            self._local[tag] = leaves
            return
        sharding, target_sharding = self.programs[task.stage, source].sharding, self.programs[stage, target].sharding
        arrays = [transfer(leaf, sharding(leaf.ndim)) for leaf in leaves]  # as the receiver expects them
        self.transfers.send(tag, arrays, [target_sharding(leaf.ndim) for leaf in leaves])

    def _receive(self, tag: str, task: Task, stage: int, boundary: int) -> list[Any]:
        """Return the operands of a task that the rank of another stage has sent.

        Args:
            tag: the tag.
            task: the task.
            stage: the stage that has sent them.
            boundary: the stage whose input has their types. Only floating-point leaves have cotangents.
        """
        source, target = (self.schedule.rank_of[each, task.microbatch] for each in (stage, task.stage))
        if target == source:
            return self._local.pop(tag)
        types = self.boundary_types[boundary]
        leaves = tree_util.tree_leaves(types) if task.kind == FORWARD else split_floats(types)[0]
        array_types = [ArrayType(leaf.shape, leaf.dtype) for leaf in leaves]
        shardings = [
            [self.programs[replica].sharding(type.ndim) for type in array_types]
            for replica in ((stage, source), (task.stage, target))
        ]
        return self.transfers.receive(tag, array_types, *shardings)


@jit
def _stack(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the arrays of lists, in order, stacked along a new dim 0."""
    return [jnp.stack(arrays) for arrays in zip(*lists, strict=True)]
