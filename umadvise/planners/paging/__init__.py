"""Planners for unified memory, whose pages the driver moves."""
