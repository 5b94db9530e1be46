"""Plans of recorded steps: the view that planners get, making, predicting and keeping them."""
