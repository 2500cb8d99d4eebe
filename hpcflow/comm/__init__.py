"""How bytes move between ranks. Imports only leaves (errors, settings, logs) and numpy."""
