"""Makers of models and files for tests."""
