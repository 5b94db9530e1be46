"""Regions of a step that are dropped and run again."""
