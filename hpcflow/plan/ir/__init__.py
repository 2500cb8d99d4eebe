"""The program as plain data, and the helpers by which passes rewrite it."""
