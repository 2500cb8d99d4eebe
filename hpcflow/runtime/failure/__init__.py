"""Failures of steps, ranks and replicas: abort, recovery, data reassignment, fault injection."""
