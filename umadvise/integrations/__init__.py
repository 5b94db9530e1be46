"""Sessions inside other people's training loops: one module for each library, which only that module imports."""
