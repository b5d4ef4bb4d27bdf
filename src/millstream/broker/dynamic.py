"""Settings that administrators change while the broker runs: its own and those of groups; in one file of the data folder.

`settings.json`, replaced as a whole and on disk before an administrator's request is answered:

    {"version": 1, "broker": {"" | node id: {name: value}}, "groups": {group id: {name: value}}}

"" is what Kafka calls the cluster's default; what is set for the broker by its number wins, and both win over what was
given at start. A group's value is brought between the broker's bounds for it when it is used, as in Kafka.

Source: Kafka's DynamicBrokerConfig, GroupConfig.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.broker.settings import DYNAMIC, LONG_MAX, Known, Settings, SettingsError, checked
from millstream.log.files import replace

NAME: Final = "settings.json"
VERSION: Final = 1
WRITTEN: Final = "new settings.json written beside the old one"
# Each takes memory and a part of the file, which every change writes again.
MAX_GROUPS: Final = 10_000
DEFAULT: Final = ""  # the resource name of the cluster's default


class GroupSetting(NamedTuple):
    """A group's setting: the broker's setting that it overrides, and those that bound it; or its own default and form."""

    synonym: str = ""
    low: str = ""
    high: str = ""
    own: Known | None = None

    @property
    def kind(self) -> str:
        """As `Known` names it."""
        return self.own.kind if self.own is not None else "int"


GROUP: Final = {
    "consumer.heartbeat.interval.ms": GroupSetting(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": GroupSetting(
        "group.consumer.session.timeout.ms",
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
    **{
        f"share.{name}": GroupSetting(f"group.share.{name}", f"group.share.min.{name}", f"group.share.max.{name}")
        for name in (
            "heartbeat.interval.ms",
            "session.timeout.ms",
            "record.lock.duration.ms",
            "delivery.count.limit",
            "partition.max.record.locks",
        )
    },
    "share.auto.offset.reset": GroupSetting(own=Known("string", "latest")),
    "share.isolation.level": GroupSetting(
        own=Known("string", "read_uncommitted", choices=("read_committed", "read_uncommitted"))
    ),
    "share.renew.acknowledge.enable": GroupSetting(own=Known("boolean", "true")),
}
# ISO 8601, as Java's Duration.parse takes it.
_DURATION = re.compile(
    r"by_duration:P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.ASCII | re.IGNORECASE
)


class Dynamic:
    """What was changed, in memory and in the file; the broker's part is in effect in `settings`."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Read the file, if there is one. Raises SettingsError."""
        self.path = folder / NAME
        self.settings = settings
        self.node = settings.values["node.id"]
        self.broker: dict[str, dict[str, str]] = {}
        self.groups: dict[str, dict[str, str]] = {}
        try:
            data = json.loads(self.path.read_bytes())
            if data.get("version") != VERSION:
                raise SettingsError(
                    f"{self.path} has version {data.get('version')}, expected {VERSION}: it is of a newer Millstream"
                )
            self.broker, self.groups = _maps(data["broker"]), _maps(data["groups"])
        except (FileNotFoundError, NotADirectoryError):
            return  # what is wrong with the folder, the log says
        except SettingsError:
            raise
        except (OSError, ValueError, KeyError, AttributeError) as e:
            raise SettingsError(
                f"{self.path} cannot be read: {e!r}; restore it, or move it away and make the changes again"
            ) from None
        try:
            self.settings.override(self._in_effect(self.broker))
        except SettingsError as e:
            raise SettingsError(f"{self.path}: {e}; mend it, or move it away and make the changes again") from None

    # ---- the broker

    def check_broker(self, name: str, overrides: Mapping[str, str]) -> Settings:
        """The settings that would be in effect with these overrides of the broker. Raises SettingsError."""
        fixed = sorted(set(overrides) - DYNAMIC)
        if fixed:
            raise SettingsError(f"Cannot update these configs dynamically: {', '.join(fixed)}; give them at start")
        changed = Settings(self.settings.given)
        changed.override(self._in_effect({**self.broker, name: dict(overrides)}))
        return changed

    def change_broker(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace the overrides of the broker (or of the default), which `check_broker` took. Raises SettingsError."""
        self._save({**self.broker, name: dict(overrides)}, self.groups)
        self.settings.override(self._in_effect(self.broker))

    def _in_effect(self, broker: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        return {**broker.get(DEFAULT, {}), **broker.get(self.node, {})}

    # ---- groups

    def check_group(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Whether a group may have these overrides. Raises SettingsError."""
        for name, value in overrides.items():
            if name not in GROUP:
                raise SettingsError(f"unknown group setting {name}: expected one of {', '.join(GROUP)}")
            own = GROUP[name].own
            if own is not None:
                checked(name, value, own)
                if name == "share.auto.offset.reset":
                    _check_reset(value)
                continue
            bounds = [self.settings.integer(each) for each in GROUP[name][1:3]]
            if not bounds[0] <= int(checked(name, value, Known("long", "", -LONG_MAX, LONG_MAX))) <= bounds[1]:
                raise SettingsError(f"{name} must be in the range {bounds[0]} to {bounds[1]} inclusive.")
        effective = {
            name: int(overrides.get(name, self.settings.values[known.synonym]))
            for name, known in GROUP.items()
            if known.own is None
        }
        for kind in ("consumer", "share"):
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if overrides and effective[session] <= effective[heartbeat]:
                raise SettingsError(f"{session} must be greater than {heartbeat}")
        if group_id not in self.groups and len(self.groups) >= MAX_GROUPS:
            raise SettingsError(f"there are settings of {MAX_GROUPS} groups: no more are taken")

    def change_group(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replace a group's overrides, which `check_group` took. Raises SettingsError."""
        self._save(self.broker, {**self.groups, group_id: dict(overrides)})

    def of_group(self, group_id: str, name: str) -> int:
        """The value in effect of a group's setting."""
        known = GROUP[name]
        value = self.groups.get(group_id, {}).get(name)
        if value is None:
            return self.settings.integer(known.synonym)
        return min(max(int(value), self.settings.integer(known.low)), self.settings.integer(known.high))

    def text_of_group(self, group_id: str, name: str) -> str:
        """The value in effect of a group's setting of any kind, as text."""
        own = GROUP[name].own
        if own is None:
            return str(self.of_group(group_id, name))
        return self.groups.get(group_id, {}).get(name, own.default)

    def reset_duration_ms(self, group_id: str) -> int:
        """How far back a group begins whose share.auto.offset.reset is by_duration, in milliseconds."""
        found = _DURATION.fullmatch(self.text_of_group(group_id, "share.auto.offset.reset"))
        if found is None:
            return 0
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return int(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))

    def _save(self, broker: Mapping[str, dict[str, str]], groups: Mapping[str, dict[str, str]]) -> None:
        broker, groups = ({k: v for k, v in each.items() if v} for each in (broker, groups))
        data = {"version": VERSION, "broker": broker, "groups": groups}
        try:
            replace(self.path, (json.dumps(data, indent=1) + "\n").encode(), point=WRITTEN)
        except OSError as e:
            raise SettingsError(f"{self.path} cannot be written: {os.strerror(e.errno or 0)}") from None
        self.broker, self.groups = broker, groups


def _check_reset(value: str) -> None:
    """Raises SettingsError."""
    if value not in ("earliest", "latest") and not _DURATION.fullmatch(value):
        text = f"share.auto.offset.reset={value}: expected earliest, latest or by_duration:PnDTnHnMn.nS"
        raise SettingsError(text + " (ISO 8601, not negative)")


def _maps(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Names and texts by resource; AttributeError or ValueError when they are something else."""
    found = {name: dict(overrides.items()) for name, overrides in data.items()}
    if not all(isinstance(text, str) for overrides in found.values() for pair in overrides.items() for text in pair):
        raise ValueError("expected texts")
    return found
