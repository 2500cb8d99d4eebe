"""Distribution passes: replicas, placement, variable sharding, parameter servers, frames."""
