"""The loop: what plans steps, what drives them by their plans, and what chooses the rung that they run on."""
