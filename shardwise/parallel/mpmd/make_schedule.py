"""task_schedule: the schedules of MPMD pipelines by name."""

from shardwise.errors import StrategyError
from shardwise.parallel.mpmd.fixed_orders import gpipe, interleaved, one_forward_one_backward, zero_bubble_h1
from shardwise.parallel.mpmd.integers import positive_integer
from shardwise.parallel.mpmd.list_scheduler import Slots, list_schedule
from shardwise.parallel.mpmd.simulate import TaskTimes
from shardwise.parallel.mpmd.task_schedule import TaskSchedule

TASK_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe")


def task_schedule(
    schedule: str, ranks: int, microbatches: int, chunks: int = 1, times: TaskTimes | None = None
) -> TaskSchedule:
    """Compute the schedule of an MPMD pipeline: the tasks of each rank in order.

    Args:
        schedule: "gpipe": all forward passes, then all backward passes. "1f1b": forward and backward passes in turn.
            "interleaved": 1F1B with several stages per rank. "zb-h1": 1F1B with separate input and weight gradients.
            "zb-v": separate gradients, and the stages `r` and `2p - 1 - r` on rank `r` of `p`. "dualpipe":
            microbatches enter at both ends, and each rank holds two stages.
        ranks: the number of ranks.
        microbatches: the number of microbatches.
        chunks: the number of stages per rank, for "interleaved".
        times: the times of tasks, for which "zb-v" and "dualpipe" are optimized; by default, all are equal.

    Returns:
        The schedule.

    Raises:
        StrategyError: if the schedule is unknown, if a number is not valid, or if "interleaved" has a number of
            microbatches that the ranks do not divide.

    Example:
        >>> print(jax.parallel.task_schedule("zb-h1", ranks=2, microbatches=3))
        zb-h1: 2 ranks, 2 stages, 3 microbatches
        rank 0  F0 F1 I0 W0 F2 I1 W1 I2 W2
        rank 1  F0 I0 F1 I1 W0 F2 I2 W1 W2
        live activations: 2, 2
    """
    if schedule not in TASK_SCHEDULES:
        raise StrategyError(f"task_schedule: unknown schedule {schedule!r}: use {', '.join(map(repr, TASK_SCHEDULES))}")
    ranks, microbatches, chunks = (
        positive_integer(number, f"task_schedule: {name}")
        for name, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks))
    )
    if chunks > 1 and schedule != "interleaved":
        raise StrategyError(
            f"task_schedule: schedule {schedule!r} has a fixed number of stages per rank: use schedule='interleaved', "
            "or leave chunks out."
        )
    times = times or TaskTimes()
    if schedule == "gpipe":
        return gpipe(ranks, microbatches)
    if schedule == "1f1b":
        return one_forward_one_backward(ranks, microbatches)
    if schedule == "zb-h1":
        return zero_bubble_h1(ranks, microbatches)
    if schedule == "zb-v":
        return _v_shaped(ranks, microbatches, times)
    if schedule == "dualpipe":
        return _bidirectional(ranks, microbatches, times)
    if microbatches % ranks:
        raise StrategyError(
            f"task_schedule: schedule 'interleaved' passes microbatches through its chunks in groups of {ranks}, the "
            f"number of ranks, which does not divide {microbatches} microbatches: use "
            f"{-(-microbatches // ranks) * ranks} microbatches, or schedule='1f1b'."
        )
    return interleaved(ranks, microbatches, chunks)


def _v_shaped(ranks: int, microbatches: int, times: TaskTimes) -> TaskSchedule:
    """Return the schedule of 2p stages in a V: the first and the last stage are on rank 0.

    A rank holds at most 2p activations of its stages. Each stage is half of a rank's layers, so this is the memory of
    p activations of 1F1B.
    """
    last = 2 * ranks - 1
    slots = [[Slots((rank, last - rank), 2 * ranks)] for rank in range(ranks)]
    return list_schedule("zb-v", slots, microbatches, lambda stage, _: min(stage, last - stage), times)


def _bidirectional(ranks: int, microbatches: int, times: TaskTimes) -> TaskSchedule:
    """Return the schedule in which microbatches with an odd index pass through the ranks in reverse order.

    Rank `r` holds the activations that it would hold as rank `r` and as rank `p - 1 - r` of 1F1B, p + 1 in total.
    """
    last = ranks - 1
    slots = [
        [Slots((rank,), ranks + 1)]
        if rank == last - rank
        else [Slots((rank,), ranks - rank), Slots((last - rank,), rank + 1)]
        for rank in range(ranks)
    ]
    return list_schedule(
        "dualpipe", slots, microbatches, lambda stage, index: stage if index % 2 == 0 else last - stage, times
    )
