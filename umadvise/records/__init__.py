"""Records in which everything meets, each with its file format: traces, plans, devices, counters, fault profiles."""
