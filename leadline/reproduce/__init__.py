"""The papers' figures and tables by name."""
