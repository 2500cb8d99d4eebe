"""Which task and device has what: replicas, placement, variable sharding, parameter servers."""
