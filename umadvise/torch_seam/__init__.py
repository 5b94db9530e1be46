"""Everything that replaces or reads a part of torch."""
