"""What a session watches: steps, modules, ops and counters."""
