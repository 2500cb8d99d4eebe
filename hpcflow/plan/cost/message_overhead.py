"""Message overhead: what messages between the ranks of a job cost, in bytes and seconds.

The seconds are round numbers for two ranks of one node whose messages pass through shared memory.
They only rank placements against each other.
"""

HEADER_BYTES = 64  # the message by which the driver starts a step on each other task of the plan
MESSAGE_S = 5e-5  # seconds from the Send of a small value until its receiver goes on
MESSAGE_BYTES_PER_S = 5e9  # of a large value
