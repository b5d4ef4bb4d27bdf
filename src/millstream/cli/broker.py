"""`millstream broker`: the log alone, in the foreground. Only its line in the help: `main` hands the arguments over unread."""

from __future__ import annotations

from millstream.cli.common import Common, command


@command(example="millstream broker --data log --listen 127.0.0.1:9092 --set num.partitions=4", shows=())
def broker(at: Common) -> None:
    """Run the log alone: a broker that speaks Kafka's protocol."""
    from millstream.broker import main

    raise SystemExit(main(["--help"]))
