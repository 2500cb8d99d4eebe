"""Placement: costs of a graph on devices, and the search for the split with the least time."""
