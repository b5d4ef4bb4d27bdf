"""What a user declares in one Python file, and the graph it makes. No Spark, no database driver, no Kafka client."""

from millstream.app.application import App
from millstream.app.inputs import Table, Topic
from millstream.app.load import load
from millstream.app.query import Query

__all__ = ["App", "Query", "Table", "Topic", "load"]
