"""Runtime: executor, sessions, ranks and their roles, state between steps, failures, profiles."""
