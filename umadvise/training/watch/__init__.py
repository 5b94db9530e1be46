"""What watches a training loop: the names of its modules, the clock of its steps, and who records it."""
