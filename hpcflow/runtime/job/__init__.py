"""A rank in its job: joining, its role, control messages, services, agreement, stopping."""
