"""Cost model of a plan: FLOPs, bytes, messages and memory."""
