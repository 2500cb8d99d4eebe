"""Plan listings: text, JSON data and diagrams."""
