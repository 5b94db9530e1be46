"""Judges plans: scores, comparisons, predictions, fragmentation."""
