"""Step execution: feeds, compiled partitions, step instances, messages, fetches, plan cache."""
