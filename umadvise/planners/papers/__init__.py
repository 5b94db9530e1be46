"""Planners as their papers describe them."""
