"""Measuring: what to run, how long it took, and in which words to say so."""
