"""A supervisor of tiny children instead of the real parts. As a program: `fake.py FOLDER` runs it until a signal."""

import sys
from pathlib import Path

from millstream.app import App
from millstream.app.graph import Graph
from millstream.app.process import Process
from millstream.run.supervisor import Supervisor
from millstream.settings import MillstreamError, Settings
from tests.run.supervision import QUICK, Children

LISTENS = """
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
ready(kafka="127.0.0.1:%d" % server.getsockname()[1])
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


class Fake(Supervisor):
    """broker ← capture-ops ← spark, each a script of a few lines."""

    def __init__(self, folder: Path, *, spark: str = "ready()", **more) -> None:
        self.children = Children(folder)
        self._spark = spark
        more.setdefault("pace", QUICK)
        super().__init__(App("fake"), Settings(data=folder / "data"), file="fake.py", **more)

    def _make_graph(self, app):
        script = self.children.script
        processes = (
            Process("broker", (*script("broker", LISTENS), "{port}"), provides=frozenset({"kafka"})),
            Process("capture-ops", script("capture"), frozenset({"broker"}), kind="capture"),
            Process("spark", script("spark", self._spark), frozenset({"capture-ops"}), grace=0.5),
        )
        return Graph("fake", processes=processes)

    def _make_steps(self):
        return []


if __name__ == "__main__":
    fake = Fake(Path(sys.argv[1]), spark=(STUBBORN if "stubborn" in sys.argv else "") + "ready()", say=print)
    try:
        with fake.signals(), fake:
            if fake.wait_ready(20):
                print("up", flush=True)
            fake.wait()
            print("over", flush=True)
    except MillstreamError as error:
        sys.exit(str(error))
