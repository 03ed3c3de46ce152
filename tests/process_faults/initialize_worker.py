"""One process that calls `distributed.initialize`: initialize_worker.py ADDRESS PROCESSES RANK TIMEOUT END.

It prints its error, or that it joined the others, as a JSON object; then it leaves when the file END exists.
"""

import json
import sys
import time
from pathlib import Path

import shardwise as sw


def main():
    address, *numbers, end = sys.argv[1:]
    processes, rank, timeout = map(int, numbers)
    sw.config.update("num_cpu_devices", 1)
    try:
        sw.distributed.initialize(address, processes, rank, initialization_timeout=timeout)
    except (RuntimeError, ValueError, OSError) as error:
        print(json.dumps({"event": "outcome", "error": type(error).__name__, "text": str(error)}), flush=True)
        return
    print(json.dumps({"event": "outcome", "error": None, "devices": len(sw.devices())}), flush=True)
    while not Path(end).exists():
        time.sleep(0.05)
    sw.distributed.shutdown()


if __name__ == "__main__":
    main()
