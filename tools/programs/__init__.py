"""Random programs of state, order, branches and loops, and what runs them; see fuzz_programs.py."""
