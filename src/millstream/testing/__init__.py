"""The pytest kit: an application's functions on rows in memory, and a whole application on its real parts.

rows = ms.testing.run(very_late, departures=[Departure(…)])            # plain Spark, no broker
with ms.testing.running(app, tmp_path) as flights: …                   # everything, started and ended
"""

from millstream.testing.rows import run, spark_session
from millstream.testing.running import Running, running

__all__ = ["Running", "run", "running", "spark_session"]
