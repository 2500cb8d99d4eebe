"""Steps that run: the engine, sessions, roles of ranks, state held between steps."""
