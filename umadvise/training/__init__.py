"""A training loop under a budget: the session, its policy, what it watches, plans and drives."""
