"""Recurrent cells and the loops that run them."""
