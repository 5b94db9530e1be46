"""Plans of recorded steps: the capacity that planners get, making, predicting and keeping plans."""
