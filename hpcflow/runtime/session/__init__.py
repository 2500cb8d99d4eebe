"""Sessions: configuration, running fetches, closing."""
