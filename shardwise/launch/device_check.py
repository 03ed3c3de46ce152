"""A program for `shardwise doctor`: it prints the devices of this machine as JSON."""

import json

import shardwise as sw


def main() -> None:
    """Print the platform, kind and memory of every device, after running a program on the first."""
    (sw.numpy.arange(4) + 1).block_until_ready()
    devices = [
        {
            "platform": device.platform,
            "kind": device.device_kind,
            "bytes_limit": (device.memory_stats() or {}).get("bytes_limit"),
        }
        for device in sw.devices()
    ]
    print(json.dumps(devices))


if __name__ == "__main__":
    main()
