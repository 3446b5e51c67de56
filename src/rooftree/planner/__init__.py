"""Capacity before buying: what fits, how fast it answers, what binds, and what it costs."""
