"""What runs have done, read from their directories: `runs`, and shown: `text`, `picture`."""
