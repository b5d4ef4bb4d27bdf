"""What has settings that can be changed while the broker runs: topics, the broker itself, and groups."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from millstream.broker.broker import Broker
from millstream.broker.core import Core
from millstream.broker.dynamic import Dynamic
from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.refused import Refused
from millstream.broker.settings import DYNAMIC, SettingsError
from millstream.log import Log, LogError
from millstream.log.config import SETTINGS, TopicConfig
from millstream.protocol import errors

# Kafka's numbers (ConfigResource.Type).
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


class Configurable(ABC):
    """One thing with settings. `overrides`: those that it has itself, by name."""

    overrides: Mapping[str, str]

    @abstractmethod
    def value(self, name: str) -> str:
        """The value in effect."""

    @abstractmethod
    def is_list(self, name: str) -> bool:
        """Whether a setting is a list, which elements can be added to."""

    @abstractmethod
    def change(self, changes: Mapping[str, str | None], *, only_check: bool) -> None:
        """Set settings, or with None remove one; in effect and on disk when it returns. Raises Refused."""

    def after(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """The overrides after a change."""
        return {name: value for name, value in {**self.overrides, **changes}.items() if value is not None}


def find(broker: Broker, kind: int, name: str) -> Configurable:
    """What the settings of a request are of. Raises Refused."""
    if kind == TOPIC:
        return TopicSettings(broker.log, name)
    if kind == BROKER:
        check_node(broker, name)
        return BrokerSettings(broker, name)
    if kind == GROUP:
        return GroupSettings(broker.dynamic, broker.groups, name)
    known = {BROKER_LOGGER: "Log levels", CLIENT_METRICS: "Settings of client metrics"}
    text = f"{known.get(kind, f'Settings of resource type {kind}')} cannot be changed; those of topics, of the broker and of "
    raise Refused(errors.INVALID_REQUEST, text + "groups can.")


def check_node(broker: Broker, name: str) -> None:
    """Raises Refused for the name of a broker other than this one; "" is the default of all."""
    if name not in ("", str(broker.node_id)):
        text = f"Unexpected broker id, expected {broker.node_id}, but received {name}"
        raise Refused(errors.INVALID_REQUEST, text)


class TopicSettings(Configurable):
    """Those of a topic, which need not be there: as in Kafka that is looked at after whether the change is right.

    Source: ConfigurationControlManager.validateAlterConfig.
    """

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._topic = log.topics.get(name)
        self._config = TopicConfig({}, log.defaults.topics) if self._topic is None else self._topic.config
        self.overrides = self._config.overrides

    def value(self, name: str) -> str:
        return self._config.get(name)

    def is_list(self, name: str) -> bool:
        return name in SETTINGS and SETTINGS[name].kind == "list"

    def change(self, changes: Mapping[str, str | None], *, only_check: bool) -> None:
        try:
            TopicConfig(self.after(changes), self._log.defaults.topics)
            if self._topic is None:
                raise Refused(errors.UNKNOWN_TOPIC_OR_PARTITION, "The topic does not exist.")
            if not only_check:
                self._log.configure(self._topic.name, changes)
        except LogError as e:
            raise Refused(e.code, str(e)) from None


class BrokerSettings(Configurable):
    """Those of the broker by its number, or, without a name, what Kafka calls the default of the cluster."""

    def __init__(self, core: Core, name: str) -> None:
        self._core, self._name = core, name
        self.overrides = core.dynamic.broker.get(name, {})

    def value(self, name: str) -> str:
        return self.overrides.get(name) or self._core.settings.value(name)

    def is_list(self, name: str) -> bool:
        return name in DYNAMIC and self._core.settings.kind(name) == "list"

    def change(self, changes: Mapping[str, str | None], *, only_check: bool) -> None:
        after = self.after(changes)
        try:
            changed = self._core.dynamic.check_broker(self._name, after)
            self._core.log.set_defaults(changed.log_defaults, only_check=True)
            if not only_check:
                self._core.dynamic.change_broker(self._name, after)
                self._core.log.set_defaults(changed.log_defaults)
        except (SettingsError, LogError) as e:
            raise Refused(errors.INVALID_REQUEST, str(e)) from None


class GroupSettings(Configurable):
    """Those of a group, which need not be there."""

    def __init__(self, dynamic: Dynamic, groups: GroupCoordinator, group_id: str) -> None:
        self._dynamic, self._groups, self._id = dynamic, groups, group_id
        self.overrides = dynamic.groups.get(group_id, {})

    def value(self, name: str) -> str:
        return self._dynamic.text_of_group(self._id, name)

    def is_list(self, name: str) -> bool:
        return False

    def change(self, changes: Mapping[str, str | None], *, only_check: bool) -> None:
        if not self._id:
            raise Refused(errors.INVALID_REQUEST, "Default group resources are not allowed.")
        after = self.after(changes)
        try:
            self._dynamic.check_group(self._id, after)
            if not only_check:
                self._dynamic.change_group(self._id, after)
                self._groups.consumer.reconfigured(self._id)
                self._groups.share.reconfigured(self._id)
        except SettingsError as e:
            raise Refused(errors.INVALID_CONFIG, str(e)) from None
