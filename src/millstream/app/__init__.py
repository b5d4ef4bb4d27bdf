"""The application: what a user declares in one Python file, and the graph it makes."""

from millstream.app.application import App
from millstream.app.load import load

__all__ = ["App", "load"]
