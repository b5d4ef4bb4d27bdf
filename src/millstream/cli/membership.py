"""What belongs to one application when several share a log: told by the names of its groups, topics and status."""

from __future__ import annotations

from millstream.settings import Kafka


def belongs(name: str, app: str) -> bool:
    """Tell whether a group or internal topic is an application's: "<app>.…", "_<app>.…"."""
    return name.removeprefix("_").startswith(f"{app}.")


def topics_of(kafka: Kafka, app: str) -> set[str]:
    """Return the topics that an application has: those of its name, and those that its groups have read or its parts report."""
    from millstream.client.admin import topic_names
    from millstream.monitor.lag import all_lags
    from millstream.monitor.status import read

    found = {name for name in topic_names(kafka) if belongs(name, app)}
    found |= {lag.topic for lag in all_lags(kafka) if belongs(lag.group, app)}
    for facts in read(kafka, app).values():
        found |= set(facts["offsets"]) if isinstance(facts.get("offsets"), dict) else set()
        found |= {str(facts["to"])} if "to" in facts else set()
    return found
