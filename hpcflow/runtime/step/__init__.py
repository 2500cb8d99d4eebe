"""One step: feeds, the compiled partition and its instances, messages, fetches, the plan cache."""
