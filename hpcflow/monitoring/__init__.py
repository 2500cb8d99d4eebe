"""Monitoring of ranks: wait ledgers, stall watchdog, failure detector, `failure.json`."""
