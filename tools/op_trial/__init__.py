"""Operators of torch's databases, run plain and where everything leaves the device between their parts."""
