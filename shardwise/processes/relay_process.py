"""The process of a relay (`relay.py`): python relay_process.py HOST PORT SOCKET

It relays one connection of a Unix socket to a TCP address, and ends at EOF of its standard input. It writes `ready`
when it listens, `error …` if the address cannot be reached, and `lost` when the connection to the address ends.
"""

import os
import socket
import sys
import threading
from contextlib import suppress


def copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of the connections ends."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


def relay(listener: socket.socket, service: socket.socket) -> None:
    """Accept one connection, and relay it in both directions."""
    client, _ = listener.accept()

    def receive() -> None:
        copy(service, client)
        with suppress(BrokenPipeError):  # the parent process has ended too
            print("lost", flush=True)  # the client's connection stays open

    threading.Thread(target=receive, daemon=True).start()
    copy(client, service)
    with suppress(OSError):
        service.shutdown(socket.SHUT_WR)


def main() -> None:
    """Relay until EOF of standard input, when the parent process has ended or closes the relay."""
    host, port, path = sys.argv[1:]
    try:
        service = socket.create_connection((host, int(port)))
        service.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
    except OSError as error:
        print(f"error {error}", flush=True)
        return
    print("ready", flush=True)
    threading.Thread(target=relay, args=(listener, service), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
