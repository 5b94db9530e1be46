"""Policies: the ladder's rungs, and how `auto` goes up and down on it."""
