"""What a plan costs: FLOPs, bytes, messages, memory."""
