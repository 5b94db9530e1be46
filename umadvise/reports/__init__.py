"""From what a device counted to what a person reads: counters, findings, reporters."""
