"""What drives each step by its plan, and changes rungs."""
