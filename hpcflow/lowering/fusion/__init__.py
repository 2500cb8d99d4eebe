"""Several nodes of a strand become one kernel: a generated loop, an epilogue, a tile at a time."""
