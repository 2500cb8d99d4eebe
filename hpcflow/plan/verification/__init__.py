"""Checks that a pass or a whole plan loses no effect and cannot deadlock."""
