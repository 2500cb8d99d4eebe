"""Who waits for whom, who has died: ledgers, watchdog, failure detector, `failure.json`."""
