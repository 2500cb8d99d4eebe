"""Parameter servers: synchronization rules for the gradients of the workers."""
