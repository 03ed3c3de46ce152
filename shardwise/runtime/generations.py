"""Generations: the successive sets of processes of a program that `shardwise launch --spares` started.

A generation ends when one of its processes fails, or when more processes can join. Each process then leaves it, and
waits for its place in the next one. A spare process waits for its first place.
"""

import os
from typing import final

from shardwise.processes.environment import ADDRESS, LOCAL_DEVICE_IDS, NUM_PROCESSES, PROCESS_ID, TOKEN
from shardwise.processes.protocol import PROTOCOL_VERSION, RoomQuery, Waiting
from shardwise.processes.roster import has_room, wait_for_place
from shardwise.processes.variables import ROSTER, ROSTER_PROCESS, ROSTER_TOKEN, Variables


@final
class _Generations:
    """The generations of which this process is a member, one after the other.

    Attributes:
        number: the number of the current generation, or of the last one; -1 before the first.
        newcomers: the ranks whose processes have reached no step in the generations before.
        is_recovering: whether the program continues with the next generation, by `checkpoints.recover`.
    """

    def __init__(self) -> None:
        self.number = -1
        self.newcomers: frozenset[int] = frozenset()
        self.is_recovering = False

    @property
    def are_possible(self) -> bool:
        """Whether the launcher replaces processes that fail."""
        return ROSTER in os.environ

    def take_place(self, step: int | None = None, reason: str = "") -> None:
        """Wait for the place of this process in the next generation, and set the variables that describe it.

        Args:
            step: the last step that this process has reached.
            reason: why the last generation has ended.

        Raises:
            RendezvousError: if the launcher cannot be reached.
        """
        variables = Variables(os.environ)
        number = variables.required_integer(ROSTER_PROCESS, ROSTER)
        token = variables.required_text(ROSTER_TOKEN, ROSTER)
        message = Waiting(token, PROTOCOL_VERSION, number, self.number, step, reason)
        place = wait_for_place(variables.required_text(ROSTER, ROSTER), message)
        self.number = place.generation
        self.newcomers = frozenset(map(int, place.newcomers.split(","))) if place.newcomers else frozenset()
        os.environ |= {
            ADDRESS: place.address,
            TOKEN: place.token,
            NUM_PROCESSES: str(place.num_processes),
            PROCESS_ID: str(place.rank),
            LOCAL_DEVICE_IDS: place.device_ids,
        }

    def has_room(self) -> bool:
        """Return whether this generation should end at the next snapshot, so that more processes can join."""
        variables = Variables(os.environ)
        token = variables.required_text(ROSTER_TOKEN, ROSTER)
        return has_room(variables.required_text(ROSTER, ROSTER), RoomQuery(token, PROTOCOL_VERSION, self.number))


generations = _Generations()
