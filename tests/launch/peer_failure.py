"""A program that joins the coordinator and needs no devices: process 0 raises a PeerFailure about process 1."""

import os
import time

from shardwise.errors import PeerFailure
from shardwise.processes.member import Member, report_uncaught_exceptions

host, _, port = os.environ["SHARDWISE_COORDINATOR_ADDRESS"].rpartition(":")
rank, count = (int(os.environ[f"SHARDWISE_{name}"]) for name in ("PROCESS_ID", "NUM_PROCESSES"))
member = Member(host, int(port), rank, count, os.environ["SHARDWISE_COORDINATOR_TOKEN"], {}, 300)
report_uncaught_exceptions(lambda: member)
if rank == 0:
    raise PeerFailure(1, 7, "it did not reach save 3 within 10 s")
time.sleep(600)
