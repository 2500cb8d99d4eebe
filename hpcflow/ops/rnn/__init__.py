"""Recurrent ops: RNN cells, and the loops that run them."""
