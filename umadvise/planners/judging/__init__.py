"""What plans are worth: scores, comparisons, predictions, fragmentation."""
