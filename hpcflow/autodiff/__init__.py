"""Gradients: graph to graph, by the gradient function of each op; gradient checkpointing."""
