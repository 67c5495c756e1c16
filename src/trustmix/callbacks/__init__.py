"""What watches a run while it goes on: the recorder of trust, and trackers of experiments."""
