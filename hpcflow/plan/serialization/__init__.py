"""Serialization of plans and partitions, and the keys of the plan cache."""
