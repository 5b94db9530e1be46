"""Planners: what moves when, so that a step fits a budget."""
