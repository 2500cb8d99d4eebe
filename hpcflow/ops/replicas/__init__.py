"""Ops about replicas and tasks: allreduce, Send and Recv, gradient aggregation on servers."""
