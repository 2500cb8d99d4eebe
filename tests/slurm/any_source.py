"""All other ranks send to rank 0, which answers each message: does it hear all of them?

    MPIR_CVAR_NOLOCAL=1 mpiexec -n 4 python tests/slurm/any_source.py posted

With the wheels of MPICH 4.3.2, 5.0.0 and 5.0.2 over UCX a receive posted from MPI_ANY_SOURCE soon
misses a message, which a probe then sees. `channel` receives by hpcflow's channel instead.
"""

import sys
import time

import numpy as np

from hpcflow.comm import mpi_communicator

MESSAGES, PATIENCE_S = 2000, 100.0
ASK, ANSWER = 1, 2


def wait(test, what: str) -> None:
    """Poll as hpcflow does; end the job after a while."""
    end = time.monotonic() + PATIENCE_S
    while not test():
        time.sleep(1e-5)
        if time.monotonic() > end:
            print(f"rank {comm.rank} missed {what}", flush=True)
            comm.abort(1)


comm = mpi_communicator.world()
message = np.zeros(8, np.int64)
if comm.rank:
    for number in range(MESSAGES):
        message[0] = number
        wait(comm.send(message, 0, ASK).test, f"the end of send {number}")
        wait(comm.recv(message, 0, ANSWER).test, f"answer {number}")
else:
    channel = comm.recv_channel(message, comm.ANY, ASK)
    heard = [0] * comm.size
    for _ in range(MESSAGES * (comm.size - 1)):
        if sys.argv[1] == "posted":
            channel = comm.recv(message, comm.ANY, ASK)
        else:
            channel.start()
        wait(channel.test, f"a message, having heard {heard}; waiting: {comm.probe(comm.ANY, ASK)}")
        assert message[0] == heard[channel.source]
        heard[channel.source] += 1
        wait(comm.send(message, channel.source, ANSWER).test, "the end of an answer")
    print("heard all", flush=True)
