"""Automatic differentiation in reverse mode on the graph, and rematerialization."""
