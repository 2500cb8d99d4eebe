"""What happens when a step, a rank or a replica fails, and how failures are injected."""
