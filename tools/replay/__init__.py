"""Published tables, replayed: one module reads them, one a paper predicts its rows, one writes the result down."""
