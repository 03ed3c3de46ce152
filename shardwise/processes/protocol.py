"""Protocol of the control channel: one JSON object per line over TCP, between members and their coordinator.

A message is a dataclass below. Its line has the class name under `type`, and the fields. Lines, strings and integers
are limited in length, and a line that is not a valid message raises `ProtocolError`. No received data is evaluated or
unpickled. The first line of a member is `Hello`, with the token.
"""

import hmac
import json
import re
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Never, final, get_args, get_origin, get_type_hints

PROTOCOL_VERSION = 3
HELLO_LIMIT = 1 << 16  # bytes of the first line, before the token is verified
LINE_LIMIT = 1 << 26  # bytes of later lines, which may contain a printed program
# Characters of a string in a message. JSON escapes a character with up to 12 bytes, so two strings fit in a line.
TEXT_LIMIT = 1 << 21
NAME_LIMIT = 1 << 12  # characters of a program's, host's or question's name
_PROCESSES_LIMIT = 1 << 16  # characters of a set of processes
_PROCESSES_FORMAT = re.compile(r"(?:0|[1-9][0-9]{0,6})(?:,[1-9][0-9]{0,6})*")

Name = Annotated[str, NAME_LIMIT]
ProcessNumbers = Annotated[str, "ranks"]  # a set of processes: ascending ranks, separated by commas
Launches = dict[ProcessNumbers, list[int]]  # the launches on each set of processes, as in `Progress`
# The progress of others that a process waits for: their next launch, their arrival at a point of the program, the end
# of their program, or a message that only they can send.
Awaited = Literal["launch", "arrival", "end", "message"]


class ProtocolError(ValueError):
    """Bytes that are not a message of the protocol."""


class Message:
    """Base class of messages, which are dataclasses."""

    types: ClassVar[dict[str, "type[Message]"]] = {}

    def __init_subclass__(cls) -> None:
        Message.types[cls.__name__] = cls


# From a member to the coordinator.


@final
@dataclass(frozen=True)
class Hello(Message):
    """The first message of a member. `requirements` must be equal on all members: versions, flags and settings."""

    token: str
    protocol: int
    rank: int
    num_processes: int
    host: Name
    pid: int
    requirements: dict[str, str]


@final
@dataclass(frozen=True)
class Arrival(Message):
    """The member waits for the others at a point of its program. `number` counts its arrivals there."""

    point: Name
    number: int


@final
@dataclass(frozen=True)
class Progress(Message):
    """The heartbeat of a member.

    `launches` maps each set of processes to its launch count, its rolling hash, and the number of programs that were
    compared before their first run. `at_step` is True if the member has just reported the step.
    """

    step: int | None
    launches: Launches = field(default_factory=dict)
    at_step: bool = False


@final
@dataclass(frozen=True)
class Failed(Message):
    """The member ends with an uncaught exception."""

    reason: str
    traceback: str


@final
@dataclass(frozen=True)
class Leave(Message):
    """The member has reached the end of its program."""

    launches: Launches = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Comparison(Message):
    """The member is about to launch a program on a set of processes, and waits until the others launch it too.

    `number` counts the comparisons on this set. `launch` counts its launches before this one, and `rolling_hash` is
    their hash.
    """

    processes: ProcessNumbers
    number: int
    launch: int
    rolling_hash: int
    fingerprint: int
    name: Name


@final
@dataclass(frozen=True)
class Confirm(Message):
    """The member is about to read a value, and waits until its launches are confirmed to equal the others' launches.

    `number` counts these messages, `launch` the launches on the set, and `rolling_hash` is their hash.
    """

    processes: ProcessNumbers
    number: int
    launch: int
    rolling_hash: int


@final
@dataclass(frozen=True)
class CallbacksEnded(Message):
    """The callbacks of a launch have ended in this member, which waits for the callbacks of the set's other processes.

    `reason` and `traceback` describe the exception of a callback; both are empty if there was none.
    """

    processes: ProcessNumbers
    launch: int
    step: int | None
    reason: str
    traceback: str


@final
@dataclass(frozen=True)
class Answer(Message):
    """The answer to a `Request`."""

    number: int
    text: str


@final
@dataclass(frozen=True)
class Suspicion(Message):
    """The member waited too long for the processes of a set, or lost one (`lost`), and asks which process failed."""

    processes: ProcessNumbers
    reason: str
    lost: bool
    awaited: Awaited
    point: Name = ""  # where the others are expected


# From the coordinator to a member.


@final
@dataclass(frozen=True)
class Refused(Message):
    """The member may not join. `error` is the exception to raise; a member that is refused as "busy" tries again."""

    error: Literal["ValueError", "RendezvousError", "busy"]
    reason: str


@final
@dataclass(frozen=True)
class Welcome(Message):
    """All members are present. XLA's coordination service listens on `engine_port` of the coordinator's host."""

    engine_port: int


@final
@dataclass(frozen=True)
class Request(Message):
    """A question to the member, such as `stack` for the Python stack of its main thread."""

    number: int
    question: Name
    detail: str = ""


@final
@dataclass(frozen=True)
class Failure(Message):
    """A member failed: it was lost, is stuck, or ended too early. `detail` is a traceback, a stack or empty."""

    rank: int
    step: int | None
    reason: str
    detail: str = ""


@final
@dataclass(frozen=True)
class Equal(Message):
    """All processes of a set launch the same program in comparison `number`."""

    processes: ProcessNumbers
    number: int


@final
@dataclass(frozen=True)
class Confirmed(Message):
    """No process of a set has diverged from the launches of the member that sent `Confirm` with this number.

    `launch` is the number of launches that every process of the set has made, at most the member's own.
    """

    processes: ProcessNumbers
    number: int
    launch: int


@final
@dataclass(frozen=True)
class CallbackResult(Message):
    """The callbacks of a launch have ended in all processes. `rank` is the rank of a process that failed, or -1."""

    processes: ProcessNumbers
    launch: int
    rank: int
    step: int | None
    reason: str
    detail: str


@final
@dataclass(frozen=True)
class Mismatch(Message):
    """The processes of a set launch different programs."""

    processes: ProcessNumbers
    reason: str


@final
@dataclass(frozen=True)
class Goodbye(Message):
    """All members have left, or failed: the member may disconnect."""


# Between a process of `shardwise launch --spares` and the launcher's roster.


@final
@dataclass(frozen=True)
class Waiting(Message):
    """The process waits for its place in the next generation of the program.

    `process` is the number under which the launcher has started it. `generation` is the last one that it was a member
    of, or -1, and `reason` says why that one has ended. `step` is the last step that it has reached or restored.
    """

    token: str
    protocol: int
    process: int
    generation: int
    step: int | None
    reason: str


@final
@dataclass(frozen=True)
class Assignment(Message):
    """The place of the process in the next generation.

    `address` and `token` are those of the generation's coordinator. `device_ids` are the GPUs of the process, separated
    by commas, and `newcomers` the ranks whose processes have reached no step in the generations before.
    """

    generation: int
    rank: int
    num_processes: int
    address: Name
    token: str
    device_ids: Name
    newcomers: Name


@final
@dataclass(frozen=True)
class RoomQuery(Message):
    """The process asks whether its generation should end at the next snapshot, so that more processes can join."""

    token: str
    protocol: int
    generation: int


@final
@dataclass(frozen=True)
class RoomReply(Message):
    """Whether the generation should end at the next snapshot."""

    has_room: bool


# Between the launcher of node 0, which leads, and the launchers of the other nodes.


@final
@dataclass(frozen=True)
class NodeHello(Message):
    """The first message of a launcher. `nodes` and `options` must be equal on all nodes: values by option."""

    token: str
    protocol: int
    node: int
    nodes: int
    options: dict[str, str]


@final
@dataclass(frozen=True)
class NodeWelcome(Message):
    """The node takes part. Its processes wait for their places at this roster, with this token."""

    roster: Name
    token: str


@final
@dataclass(frozen=True)
class Heartbeat(Message):
    """The launcher runs. `stopped` lists the processes that a signal has stopped, separated by commas."""

    stopped: str = ""


@final
@dataclass(frozen=True)
class StartProcess(Message):
    """The launcher of a node must start a process, under this number."""

    process: int


@final
@dataclass(frozen=True)
class KillProcess(Message):
    """The launcher of a node must kill a process."""

    process: int


@final
@dataclass(frozen=True)
class SignalProcesses(Message):
    """The launcher of a node must send a signal to all of its processes."""

    number: int


@final
@dataclass(frozen=True)
class ProcessEnded(Message):
    """A process of the node has ended. A negative `code` is the signal that killed it; `errors` are its last lines."""

    process: int
    pid: int
    code: int
    by_launcher: bool
    errors: str


@final
@dataclass(frozen=True)
class JobEnded(Message):
    """The job has ended: the launcher of a node ends with this exit code. `reason` is empty without a failure."""

    code: int
    reason: str


def encode(message: Message) -> bytes:
    """Return the line of a message. Strings that are too long are truncated."""
    content = asdict(message)  # type: ignore[call-overload]
    for name, limit in _text_limits(type(message).__name__).items():
        content[name] = content[name][:limit]
    return json.dumps({"type": type(message).__name__, **content}).encode() + b"\n"


@cache
def _text_limits(name: str) -> dict[str, int]:
    """Return the length limits of the string fields of a message type."""
    types = get_type_hints(Message.types[name], include_extras=True)
    limits = ((name, TEXT_LIMIT if each is str else NAME_LIMIT if each == Name else 0) for name, each in types.items())
    return {name: limit for name, limit in limits if limit}


def decode(line: bytes) -> Message:
    """Return the message of a line.

    Lone surrogates, which JSON can express and UTF-8 cannot, become escape sequences, so that every string can be
    printed.

    Raises:
        ProtocolError: if the line is not a message.
    """
    try:
        content = json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ProtocolError(f"not a JSON object: {_excerpt(line)}") from None
    if not isinstance(content, dict):
        raise ProtocolError(f"not a JSON object: {_excerpt(line)}")
    name = content.pop("type", None)
    message_type = Message.types.get(name) if isinstance(name, str) else None
    if message_type is None:
        raise ProtocolError(f"no message type: {_excerpt(line)}")
    checks = _field_checks(message_type.__name__)
    if content.keys() != checks.keys() or not all(checks[key](value) for key, value in content.items()):
        raise ProtocolError(f"wrong fields of {name}: {_excerpt(line)}")
    return message_type(**{key: _encodable(value) for key, value in content.items()})


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


@cache
def _field_checks(name: str) -> dict[str, Callable[[Any], bool]]:
    """Return a check function for each field of a message type."""
    types = get_type_hints(Message.types[name], include_extras=True)
    return {each.name: _check_of(types[each.name]) for each in fields(Message.types[name])}  # type: ignore[arg-type]


def _check_of(annotation: Any) -> Callable[[Any], bool]:
    if annotation is int:
        return _is_integer
    if annotation == int | None:
        return lambda value: value is None or _is_integer(value)
    if annotation is str:
        return lambda value: isinstance(value, str) and len(value) <= TEXT_LIMIT
    if annotation == Name:
        return lambda value: isinstance(value, str) and len(value) <= NAME_LIMIT
    if annotation == ProcessNumbers:
        return _is_process_set
    if get_origin(annotation) is Literal:
        return lambda value: isinstance(value, str) and value in get_args(annotation)
    if annotation == dict[str, str]:
        return lambda value: isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    if annotation == Launches:
        return lambda value: isinstance(value, dict) and all(map(_is_launch_count, value.items()))
    assert annotation is bool, annotation
    return lambda value: isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < 1 << 64  # not isinstance, because bool is a subclass


def _is_launch_count(item: tuple[str, Any]) -> bool:
    processes, numbers = item
    is_triple = isinstance(numbers, list) and len(numbers) == 3
    return is_triple and all(map(_is_integer, numbers)) and _is_process_set(processes)


def _is_process_set(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _PROCESSES_LIMIT or not _PROCESSES_FORMAT.fullmatch(value):
        return False
    ranks = split_ranks(value)
    return all(rank < following for rank, following in pairwise(ranks))


def split_ranks(processes: ProcessNumbers) -> list[int]:
    """Return the ranks of a set of processes."""
    return [int(rank) for rank in processes.split(",")]


def _encodable(value: Any) -> Any:
    """Replace the lone surrogates of a string, or of the strings of a dict."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _excerpt(line: bytes) -> str:
    return repr(line[:60])


def tokens_match(token: str, expected: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(token.encode(errors="backslashreplace"), expected.encode(errors="backslashreplace"))


@final
class LineBuffer:
    """Splits received bytes into lines of at most `limit` bytes."""

    def __init__(self, limit: int):
        self.limit = limit
        self._bytes = bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the lines that they complete.

        Raises:
            ProtocolError: if a line is too long.
        """
        self._bytes += data
        if b"\n" not in data:
            lines, longest = [], len(self._bytes)
        else:
            *lines, rest = bytes(self._bytes).split(b"\n")
            self._bytes, longest = bytearray(rest), max(map(len, (*lines, rest)))
        if longest > self.limit:
            raise ProtocolError(f"a line of more than {self.limit} bytes")
        return lines


def split_address(address: str, argument: str = "coordinator_address") -> tuple[str, int]:
    """Return host and port of `host:port`, or of `[host]:port` with an IPv6 address.

    Raises:
        ValueError: if the address is malformed.
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_valid = bool(bare) and (":" not in bare or bare != host) and not any(c.isspace() or c in "/@" for c in bare)
    if not is_valid or not (port.isascii() and port.isdecimal()) or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"{argument} must be host:port, not {address!r}")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, port: int, argument: str = "coordinator_address") -> list[tuple[Any, ...]]:
    """Return the socket addresses of a host, as `socket.getaddrinfo` does.

    Raises:
        ValueError: if the host cannot be resolved.
    """
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"{argument}: the host {host!r} cannot be resolved ({error}). Write its IP address, or a name that this "
            "machine knows."
        ) from None
