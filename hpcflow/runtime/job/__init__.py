"""Ranks of a job: joining, roles, control messages, services, collective agreement, stopping."""
