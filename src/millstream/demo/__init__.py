"""The flights demo: real departures and arrivals, replayed through an application that reads like the README's."""
