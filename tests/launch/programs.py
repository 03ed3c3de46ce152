"""Programs of the launcher's tests that need no devices. The launcher starts `programs.py NAME ARGUMENT ...`."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["SHARDWISE_PROCESS_ID"])


def note_pid(folder):
    """Write a file with this process's id, so that the test sees that it runs, and whether it still does."""
    partial = Path(folder, f"pid{RANK}.tmp")
    partial.write_text(str(os.getpid()))
    partial.rename(Path(folder, f"pid{RANK}"))


def show(*arguments):
    """Print rank and arguments, to both streams."""
    print(f"rank {RANK}", *arguments)
    print(f"error {RANK}", file=sys.stderr)


def write(*arguments):
    """Print a line in parts, a progress bar and an unfinished line."""
    print("one ", end="", flush=True)
    time.sleep(0.2)
    print("line")
    print("10%\r50%\r100%\r")
    print("no end of line", end="")


def write_utf8():
    """Print an arrow in UTF-8, whatever the encoding of standard output is."""
    sys.stdout.buffer.write("→\n".encode())


def sleep(folder):
    """Sleep for ever."""
    note_pid(folder)
    time.sleep(600)


def print_for_ever(folder):
    """Print a line every 10 ms."""
    note_pid(folder)
    while True:
        print("line")
        time.sleep(0.01)


def fill_pipe(folder, name):
    """Print until nobody has read the output for a while, and write a file then."""
    note_pid(folder)
    descriptor = {"stdout": 1, "stderr": 2}[name]
    count = 0

    def note_full():
        before = -1
        while before != count:
            before = count
            time.sleep(0.5)
        Path(folder, f"full{RANK}").write_text(str(os.getpid()))

    threading.Thread(target=note_full, daemon=True).start()
    while True:
        count += os.write(descriptor, b"x" * 99 + b"\n")


def ignore_signals(folder):
    """Sleep for ever, and ignore all signals that can be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sleep(folder)


def stop(folder):
    """Stop this process with SIGSTOP."""
    note_pid(folder)
    os.kill(os.getpid(), signal.SIGSTOP)


def have_children(folder):
    """Start a child process that sleeps for ever, and sleep."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"child{RANK}").write_text(str(child.pid))
    sleep(folder)


def leave_child(folder):
    """Start a child process that sleeps for ever, and end."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"child{RANK}").write_text(str(child.pid))


def leave_daemon(folder, *options):
    """Start a child in a session of its own, which ignores signals and holds the output open; end, or sleep."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('daemon', flush=True)"
    daemon = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(600)"], start_new_session=True)
    Path(folder, f"daemon{RANK}").write_text(str(daemon.pid))
    if options:
        sleep(folder)


def print_lines(count):
    """Print lines."""
    for index in range(int(count)):
        print(f"line {index}")


def handle_sigterm(folder):
    """Save and exit with code 0 on SIGTERM, as a program that is preempted does."""

    def save(number, frame):
        Path(folder, f"saved{RANK}").write_text("saved")
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    sleep(folder)


def fail(folder):
    """Raise an exception on process 1; the others sleep."""
    if RANK == 1:
        try:
            raise KeyError("cause")
        except KeyError as error:
            raise ValueError("no such number") from error
    sleep(folder)


def kill_self(folder):
    """Process 1 kills itself; the others sleep."""
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sleep(folder)


def stop_self(folder):
    """Process 1 stops itself; the others end when they see it stopped."""
    note_pid(folder)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        print("continued")
        return
    stopping = Path(folder, "pid1")
    while not (stopping.exists() and " T " in Path(f"/proc/{stopping.read_text()}/stat").read_text()):
        time.sleep(0.01)


def one_stops(folder):
    """Process 1 stops itself; the others sleep."""
    (stop if RANK == 1 else sleep)(folder)


def fail_once(folder):
    """Fail on process 1 at the first start only."""
    with open(Path(folder, f"starts{RANK}"), "a") as file:
        file.write(f"{os.environ['SHARDWISE_RESTART_COUNT']}\n")
    if RANK == 1 and os.environ["SHARDWISE_RESTART_COUNT"] == "0":
        raise ValueError("first start")
    print("finished")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
