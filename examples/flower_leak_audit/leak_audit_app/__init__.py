"""A Flower app whose updates are audited on both sides."""
