"""The flights demo: a year of real flights out of New York, replayed as they happened, and the proof that results are right."""
