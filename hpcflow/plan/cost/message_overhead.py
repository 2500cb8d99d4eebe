"""Message overhead: bytes that the executor adds to the messages of a plan."""

HEADER_BYTES = 64  # the message by which the driver starts a step on each other task of the plan
