"""Lower bounds of a step's time in a budget."""
