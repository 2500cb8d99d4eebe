"""Parameter servers: the rules by which they join the gradients of their workers."""
