"""Fuzzer of the control channel: hostile bytes and messages, before and after authentication.

python -m tests.processes.protocol_fuzz --messages 100000 --seed 0

It runs jobs of four processes, one after the other. Processes 0 and 1 are well-behaved members. Processes 2 and 3 know
the token, and send valid messages in any order, mutated messages and garbage, until the coordinator drops them.
Meanwhile strangers connect, and send the same without the token. In every job, the coordinator must still serve the
well-behaved members, none of which may be blamed, and no message may cause an unexpected exception. The memory that
remains is bounded, and afterwards a rendezvous works.
"""

import argparse
import json
import logging
import random
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.processes.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Arrival,
    CallbackResult,
    CallbacksEnded,
    Comparison,
    Confirm,
    Equal,
    Failed,
    Failure,
    Goodbye,
    Heartbeat,
    Hello,
    JobEnded,
    KillProcess,
    Leave,
    Mismatch,
    NodeHello,
    NodeWelcome,
    ProcessEnded,
    Progress,
    Refused,
    Request,
    SignalProcesses,
    StartProcess,
    Suspicion,
    Welcome,
    encode,
    split_address,
)
from tests.processes.members import coordinator, join, leave_all, wait_until

TOKEN = "the token of the job"
PROCESSES, GOOD, HOSTILE = 4, (0, 1), (2, 3)
STRANGERS_PER_JOB = 60
MESSAGES_PER_MEMBER = 150
MEMORY_LIMIT = 256 << 20  # bytes that may remain after all jobs
SOCKET_TIME = 60  # seconds for a connection; no fuzz waits so long unless the coordinator hangs


@dataclass
class Report:
    """The counts of a run."""

    jobs: int = 0
    before: int = 0  # messages before authentication
    after: int = 0  # messages after it
    connections: int = 0
    dropped: Counter = field(default_factory=Counter)  # by reason
    errors: list[str] = field(default_factory=list)  # unexpected exceptions in the coordinator
    memory: int = 0  # bytes that remained

    @property
    def messages(self) -> int:
        return self.before + self.after


class _Errors(logging.Handler):
    """Collects the unexpected exceptions that the coordinator logs."""

    def __init__(self, errors):
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record):
        self._errors.append(self.format(record))


def random_text(rng):
    choices = ("", "x", "step", "\ud800", "\udfff ü", "0,1", "a\nb", "\x00", "漢" * 50, "y" * rng.randrange(5000))
    return rng.choice(choices)


def random_integer(rng):
    return rng.choice((0, 1, -1, 7, 2**31, 2**63, 2**64 - 1, rng.randrange(100)))


def valid_message(rng, rank=2):
    """Return a valid message of any type, in any state. Launches name only the hostile processes."""
    processes = rng.choice(("2,3", str(rank)))
    text, other_text = random_text(rng), random_text(rng)
    one, two, three = (random_integer(rng) for _ in range(3))
    step = rng.choice((None, rng.randrange(10)))
    launches = {name: [rng.randrange(5), rng.randrange(3), rng.randrange(3)] for name in {processes, "2,3"}}
    everyone = rng.choice(("0,1,2,3", "2,3", "0", "1,3", "3", "0,2"))
    awaited = rng.choice(("launch", "arrival", "end", "message"))
    return rng.choice(
        (
            lambda: Progress(step, launches, rng.random() < 0.5),
            lambda: Progress(step, {}, False),
            lambda: Comparison(processes, rng.randrange(4), rng.randrange(4), rng.randrange(3), rng.randrange(3), text),
            lambda: CallbacksEnded(processes, rng.randrange(50), step, rng.choice(("", text)), other_text),
            lambda: Confirm(processes, rng.randrange(9), rng.randrange(5), rng.randrange(3)),
            lambda: Leave(launches),
            lambda: Failed(text, other_text),
            # Well-behaved members may be blamed for their end and arrivals: they have reached none.
            lambda: Suspicion(everyone if awaited == "launch" else "2,3", text, rng.random() < 0.5, awaited, text[:9]),
            lambda: Answer(
                one, rng.choice((text, "{", "[" * 5000, "{}", '{"a": 1}', "null", "3 1", "9" * 5000 + " 1"))
            ),
            lambda: Arrival(text[:4000], two),
            lambda: Hello(text, three, one, two, text, three, {}),
        )
    )()


def from_coordinator(rng):
    """Return a message that only the coordinator may send."""
    text, number = random_text(rng), random_integer(rng)
    return rng.choice(
        (
            Refused("busy", text),
            Welcome(number),
            Request(number, text, text),
            Failure(number, None, text),
            Equal("0,1", number),
            CallbackResult("0,1", number, 0, None, text, text),
            Mismatch("0,1", text),
            Goodbye(),
        )
    )


def from_launcher(rng):
    """Return a message between the launchers of several nodes."""
    text, number = random_text(rng), random_integer(rng)
    return rng.choice(
        (
            NodeHello(text, number, number, number, {text[:9]: text[:99]}),
            NodeWelcome(text, text),
            Heartbeat(rng.choice((text, "1,2", "9" * 5000, ",", "-1"))),
            StartProcess(number),
            KillProcess(number),
            SignalProcesses(number),
            ProcessEnded(number, number, number, rng.random() < 0.5, text),
            JobEnded(number, text),
        )
    )


def random_value(rng, depth=0):
    """Return a JSON value that fields do not expect."""
    choices = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: 10 ** rng.randrange(1, 5000),
        lambda: rng.choice((1.5, float("nan"), float("inf"), -1e300)),
        lambda: random_text(rng),
        lambda: rng.choice(("0,99", "1,0", "00", "0,,1", ",", "0,1,", "٣", "9" * 30, ",".join(map(str, range(20000))))),
    ]
    if depth < 3:
        choices.append(lambda: [random_value(rng, depth + 1) for _ in range(rng.randrange(4))])
        choices.append(lambda: {random_text(rng): random_value(rng, depth + 1) for _ in range(rng.randrange(4))})
        choices.append(lambda: {f"2,{index}": [1, 2, 3] for index in range(3, 3 + rng.randrange(2000))})
    return rng.choice(choices)()


def mutated(rng, message):
    """Return the line of a message with a change in its fields or its bytes."""
    content = json.loads(encode(message))
    kind = rng.randrange(5)
    if kind == 0:
        content[rng.choice(list(content))] = random_value(rng)
    elif kind == 1:
        del content[rng.choice(list(content))]
    elif kind == 2:
        content[random_text(rng) or "more"] = random_value(rng)
    elif kind == 3:
        content["type"] = rng.choice(("Message", "Goodbye", "Progress", "", "__init__", 3, None))
    with suppress(ValueError, RecursionError):  # integers of thousands of digits
        line = json.dumps(content).encode() + b"\n"
        if kind != 4:
            return line
    line = bytearray(encode(message))
    for _ in range(rng.randrange(1, 6)):
        line[rng.randrange(len(line) - 1)] = rng.randrange(256)
    return bytes(line)


def garbage(rng):
    """Return bytes that are no message."""
    return rng.choice(
        (
            lambda: rng.randbytes(rng.randrange(200)) + b"\n",
            lambda: b"[" * 20_000 + b"\n",
            lambda: b'{"type": "Progress", "step": ' + b'{"a":' * 9000 + b"\n",
            lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            lambda: b"\x16\x03\x01" + rng.randbytes(100) + b"\n",
            lambda: b"\n" * rng.randrange(1, 100),
            lambda: b'"\xff\xfe"\n',
            lambda: '{"type": "Goodbye"}\n'.encode("utf-16"),
            lambda: b"NaN\n",
            lambda: b"9" * 10_000 + b"\n",
            lambda: b"x" * 70_000,
        )
    )()


def any_line(rng, invalid=0.5):
    """Return the bytes of a message, which is invalid with this probability."""
    if rng.random() >= invalid:
        return encode(valid_message(rng))
    kind = rng.randrange(4)
    if kind == 0:
        return garbage(rng)
    if kind == 1:
        return encode(rng.choice((from_coordinator, from_launcher))(rng))
    return mutated(rng, rng.choice((valid_message, from_coordinator, from_launcher))(rng))


def send(rng, connection, line):
    """Send a line, sometimes in parts. Return False if the connection is closed."""
    try:
        if rng.random() < 0.2:
            middle = rng.randrange(len(line) + 1)
            connection.sendall(line[:middle])
            line = line[middle:]
        connection.sendall(line)
    except OSError:
        return False
    return True


def be_stranger(rng, address, report):
    """Connect without the token, send some messages, and disconnect in some way."""
    hello = Hello(random_text(rng), PROTOCOL_VERSION, rng.choice(HOSTILE), PROCESSES, "host", 1, {})
    with socket.create_connection(address, timeout=SOCKET_TIME) as connection:
        report.connections += 1
        for _ in range(rng.randrange(6)):
            line = rng.choice((lambda: any_line(rng), lambda: encode(hello), lambda: mutated(rng, hello)))()
            report.before += 1
            if not send(rng, connection, line):
                return
        ending = rng.randrange(3)
        with suppress(OSError):
            if ending == 0:
                connection.sendall(b'{"type": "Hello", "tok')  # the rest never comes
            elif ending == 1:
                connection.shutdown(socket.SHUT_WR)


def join_hostile(address, rank):
    """Join as a member that does as it likes, and return its connection."""
    connection = socket.create_connection(address, timeout=SOCKET_TIME)
    connection.sendall(encode(Hello(TOKEN, PROTOCOL_VERSION, rank, PROCESSES, "host", 1, {})))
    return connection


def be_hostile(rng, connection, rank, report):
    """Send messages as a member until the coordinator closes the connection."""
    with connection:
        report.connections += 1
        for _ in range(MESSAGES_PER_MEMBER):
            report.after += 1
            line = encode(valid_message(rng, rank)) if rng.random() < 0.5 else any_line(rng, invalid=0.02)
            if not send(rng, connection, line):
                return
        with suppress(OSError):
            if rng.random() < 0.5:
                connection.sendall(any_line(rng)[:-1])


def run_job(rng, report):
    """Run one job, and check that its well-behaved members are unharmed."""
    with coordinator(PROCESSES, token=TOKEN) as server:
        address = split_address(server.address)
        for _ in range(STRANGERS_PER_JOB // 2):
            be_stranger(rng, address, report)
        hostile = [join_hostile(address, rank) for rank in HOSTILE]
        members = join(server, GOOD, num_processes=PROCESSES, token=TOKEN)
        assert all(not isinstance(member, Exception) for member in members), members
        for rank, connection in zip(HOSTILE, hostile, strict=True):
            be_hostile(rng, connection, rank, report)
        for _ in range(STRANGERS_PER_JOB // 2):
            be_stranger(rng, address, report)
        for member in members:
            member.report_step(report.jobs)
            wait_until(lambda member=member: server.steps()[member.rank] == report.jobs)
            assert not member.is_closed, member.failures
        blamed = {rank: failure for rank, failure in server.failures.items() if rank in GOOD}
        assert not blamed, blamed
        leave_all(members)
        report.jobs += 1
        report.dropped.update(event.text.partition(":")[0] for event in server.events if event.kind == "refused")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(messages, seed):
    """Run jobs until so many messages were sent. Return the report.

    Raises:
        AssertionError: if a well-behaved member was harmed, or the coordinator had an unexpected exception.
    """
    rng, report = random.Random(seed), Report()
    logger = logging.getLogger("shardwise")
    handler = _Errors(report.errors)
    logger.addHandler(handler)
    try:
        run_job(rng, report)
        memory = resident_bytes()
        while report.messages < messages:
            run_job(rng, report)
            assert not report.errors, report.errors[0]
    finally:
        logger.removeHandler(handler)
    report.memory = resident_bytes() - memory
    assert report.memory < MEMORY_LIMIT, report.memory
    with coordinator(2, token=TOKEN) as server:
        leave_all(join(server, [0, 1], token=TOKEN))
        assert not server.failures
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("shardwise").propagate = False
    logging.getLogger("shardwise").addHandler(logging.NullHandler())
    report = run(arguments.messages, arguments.seed)
    print(
        f"seed {arguments.seed}: {report.messages} messages ({report.before} before authentication, {report.after} "
        f"after it) on {report.connections} connections in {report.jobs} jobs; {sum(report.dropped.values())} "
        f"connections were dropped; {report.memory >> 20} MiB remained"
    )
    for reason, count in report.dropped.most_common():
        print(f"{count:8} {reason}")


if __name__ == "__main__":
    main()
