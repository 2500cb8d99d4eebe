"""WHAT is computed: tensors, operations, the graph. Imports only leaves and numpy."""
