"""The executor of one rank: it polls the waits and runs the segments that become ready."""
