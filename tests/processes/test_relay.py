"""The process of a relay ends without a traceback when its parent process was killed."""

import socket
import subprocess
import sys
import time

from shardwise.processes import relay_process

LIMIT = 60.0


def test_a_relay_whose_parent_is_killed_ends_in_silence(tmp_path):
    path = str(tmp_path / "xla")
    with socket.create_server(("127.0.0.1", 0)) as service:
        host, port = service.getsockname()
        relay = subprocess.Popen(
            [sys.executable, "-I", "-S", relay_process.__file__, host, str(port), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = service.accept()
        assert relay.stdout.readline() == b"ready\n"
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        client.sendall(b"x")
        assert connection.recv(1) == b"x"  # both directions are relayed
        relay.stdout.close()  # as at the end of the parent
        connection.close()
    time.sleep(0.5)  # for the relay to notice both
    client.close()
    relay.stdin.close()
    assert relay.wait(LIMIT) == 0
    assert relay.stderr.read() == b""
    relay.stderr.close()
