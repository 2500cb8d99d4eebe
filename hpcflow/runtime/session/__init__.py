"""Sessions: configuration, running fetches with feeds, deadlines, closing."""
