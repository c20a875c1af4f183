"""What `release/make` makes of a commit."""
