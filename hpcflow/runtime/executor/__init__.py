"""The executor of one rank: it polls waits and runs the segments that they release."""
