"""A coordinator whose process may open few files, during a flood of connections: flood_worker.py MODE CONNECTIONS.

Strangers open connections and say nothing. With MODE `full`, all descriptors of the process are in use for a while.
Then the members of a job of two processes join. Prints counts and the processor time that the process needed in one
second of the flood, as a JSON object.
"""

import json
import resource
import subprocess
import sys
import time
from contextlib import suppress

from tests.processes.members import coordinator, join, leave_all

LIMIT = 64  # open files
# Reads an address, connects to it COUNT times, prints how often, and holds the connections until its input ends.
FLOOD = """
import socket, sys
host, port = sys.stdin.readline().rsplit(":", 1)
opened = []
for _ in range(int(sys.argv[1])):
    try:
        opened.append(socket.create_connection((host, int(port)), timeout=1))
    except OSError:
        pass
print(len(opened), flush=True)
sys.stdin.read()
"""


def main():
    fills_descriptors, connections = sys.argv[1] == "full", sys.argv[2]
    flood = subprocess.Popen(
        [sys.executable, "-c", FLOOD, connections], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    opened_files = []
    with flood, coordinator(2) as server:
        if fills_descriptors:
            with suppress(OSError):
                while True:
                    opened_files.append(open("/dev/null"))  # noqa: SIM115
        flood.stdin.write(f"{server.address}\n")
        flood.stdin.flush()
        opened = int(flood.stdout.readline())
        start = time.process_time()
        time.sleep(1)
        busy = time.process_time() - start
        for file in opened_files:
            file.close()
        members = join(server, [0, 1])
        errors = [str(member) for member in members if isinstance(member, Exception)]
        if not errors:
            leave_all(members)
        flood.stdin.close()
        refused = sum(event.kind == "refused" for event in server.events)
        counts = {"opened": opened, "refused": refused, "failures": len(server.failures)}
    print(json.dumps({"busy": busy, "errors": errors, **counts}))


if __name__ == "__main__":
    main()
