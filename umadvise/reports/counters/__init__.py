"""What a device counted and saw, and its sums by role, phase, module, tensor and op."""
