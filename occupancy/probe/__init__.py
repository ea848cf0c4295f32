"""Measures what an endpoint can take: sends requests, and times them from outside."""
