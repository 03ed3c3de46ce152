"""A program that joins the coordinator and needs no devices: process 0 is stopped for ever, and the others end."""

import os
import signal

from shardwise.processes.member import Member

host, _, port = os.environ["SHARDWISE_COORDINATOR_ADDRESS"].rpartition(":")
rank, count = (int(os.environ[f"SHARDWISE_{name}"]) for name in ("PROCESS_ID", "NUM_PROCESSES"))
member = Member(host, int(port), rank, count, os.environ["SHARDWISE_COORDINATOR_TOKEN"], {}, 300)
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
member.leave(300)
member.close()
