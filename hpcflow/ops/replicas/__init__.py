"""Replica ops: allreduce, Send and Recv, gradient aggregation on servers."""
