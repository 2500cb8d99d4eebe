"""What the engine adds to a plan's own messages, so that costs count every byte."""

HEADER_BYTES = 64  # the message that starts a step, from the driver to each other task of the plan
