"""Settings that are changed while the broker runs: the rules, the file, and what real clients see of it."""

import errno
import json

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)

from millstream.broker import dynamic as module
from millstream.broker.dynamic import Dynamic
from millstream.broker.settings import Settings, SettingsError
from millstream.protocol import errors
from millstream.protocol.messages.alter_configs import AlterableConfig as LegacyConfig
from millstream.protocol.messages.alter_configs import AlterConfigsRequest
from millstream.protocol.messages.alter_configs import AlterConfigsResource as LegacyResource
from millstream.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.broker.serving import Process
from tests.broker.wire import Wire

BROKER, GROUP, TOPIC = 4, 32, 2
SET, DELETE, APPEND = 0, 1, 2


def alter(wire, kind, name, *changes, only=False):
    """The error code and the text."""
    configs = [AlterableConfig(name, operation, value) for name, operation, value in changes]
    resource = AlterConfigsResource(kind, name, configs)
    [answer] = wire.ask(IncrementalAlterConfigsRequest([resource], only), 1).responses
    return answer.error_code, answer.error_message


def heartbeat_interval(wire, group):
    beat = ConsumerGroupHeartbeatRequest(group, "me", 0, rebalance_timeout_ms=1000, topic_partitions=[])
    beat.subscribed_topic_names = ["t"]
    return wire.ask(beat, 1).heartbeat_interval_ms


# ---- the rules and the file


def test_the_brokers_number_wins_over_the_default_and_both_over_the_start(tmp_path):
    settings = Settings({"log.retention.ms": "1", "node.id": "3"})
    found = Dynamic(tmp_path, settings)
    found.change_broker("", {"log.retention.ms": "2", "max.connections": "7"})
    assert settings.value("log.retention.ms") == "2"
    found.change_broker("3", {"log.retention.ms": "3"})
    assert (settings.value("log.retention.ms"), settings.integer("max.connections")) == ("3", 7)
    again = Settings({"log.retention.ms": "1", "node.id": "3"})
    Dynamic(tmp_path, again)
    assert (again.value("log.retention.ms"), again.integer("max.connections")) == ("3", 7)
    found.change_broker("3", {})
    assert settings.value("log.retention.ms") == "2"
    found.change_broker("", {})
    assert (settings.value("log.retention.ms"), settings.integer("max.connections")) == ("1", 10000)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"num.partitions": "3"}, "Cannot update these configs dynamically: num.partitions"),
        ({"nonsense": "3"}, "Cannot update these configs dynamically: nonsense"),
        ({"max.connections": "many"}, "expected a whole number"),
        ({"log.retention.ms": "-5"}, "log.retention.ms has the value '-5'"),
    ],
)
def test_what_the_broker_refuses(tmp_path, overrides, text):
    with pytest.raises(SettingsError, match=text):
        Dynamic(tmp_path, Settings()).check_broker("", overrides)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "must be in the range 45000 to 60000 inclusive"),
        ({"consumer.heartbeat.interval.ms": "15001"}, "must be in the range 5000 to 15000 inclusive"),
        ({"consumer.heartbeat.interval.ms": "often"}, "expected a whole number"),
        ({"streams.num.standby.replicas": "1"}, "unknown group setting streams.num.standby.replicas"),
        ({"share.record.lock.duration.ms": "14999"}, "must be in the range 15000 to 60000 inclusive"),
        ({"share.delivery.count.limit": "11"}, "must be in the range 2 to 10 inclusive"),
        ({"share.auto.offset.reset": "by_duration:-PT1H"}, "expected earliest, latest or by_duration"),
        ({"share.auto.offset.reset": "by_duration:PT"}, "expected earliest, latest or by_duration"),
        ({"share.isolation.level": "dirty"}, "expected read_committed or read_uncommitted"),
        ({"share.renew.acknowledge.enable": "maybe"}, "expected true or false"),
    ],
)
def test_what_groups_refuse(tmp_path, overrides, text):
    with pytest.raises(SettingsError, match=text):
        Dynamic(tmp_path, Settings()).check_group("g", overrides)


def test_a_session_is_longer_than_a_heartbeat(tmp_path):
    settings = Settings({"group.consumer.min.session.timeout.ms": "5000"})
    with pytest.raises(SettingsError, match=r"must be greater than consumer\.heartbeat\.interval\.ms"):
        Dynamic(tmp_path, settings).check_group("g", {"consumer.session.timeout.ms": "5000"})


def test_a_groups_value_is_kept_between_todays_bounds(tmp_path):
    Dynamic(tmp_path, Settings()).change_group("g", {"consumer.session.timeout.ms": "50000"})
    tighter = Dynamic(tmp_path, Settings({"group.consumer.max.session.timeout.ms": "47000"}))
    assert tighter.of_group("g", "consumer.session.timeout.ms") == 47000
    assert tighter.of_group("other", "consumer.session.timeout.ms") == 45000


def test_there_is_room_for_so_many_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_GROUPS", 1)
    found = Dynamic(tmp_path, Settings())
    found.change_group("g", {"consumer.session.timeout.ms": "50000"})
    with pytest.raises(SettingsError, match="no more are taken"):
        found.check_group("h", {"consumer.session.timeout.ms": "50000"})
    found.change_group("g", {})
    found.check_group("h", {"consumer.session.timeout.ms": "50000"})


def test_what_cannot_be_written_is_not_in_effect(tmp_path, monkeypatch):
    settings = Settings()
    found = Dynamic(tmp_path, settings)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(module, "replace", full)
    with pytest.raises(SettingsError, match=r"settings\.json cannot be written: No space left"):
        found.change_broker("", {"max.connections": "5"})
    assert (settings.integer("max.connections"), found.broker) == (10000, {})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "cannot be read"),
        ('{"version": 9, "broker": {}, "groups": {}}', "it is of a newer Millstream"),
        ('{"version": 1, "broker": {"": {"max.connections": 5}}, "groups": {}}', "expected texts"),
        ('{"version": 1, "broker": {"": {"max.connections": "x"}}, "groups": {}}', "mend it, or move it away"),
    ],
)
def test_a_damaged_file_keeps_the_broker_from_starting(tmp_path, content, text):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(SettingsError, match=text):
        Dynamic(tmp_path, Settings())


# ---- with a running broker


def test_a_group_has_its_own_heartbeats(broker):
    with Wire(broker.address) as wire:
        change = ("consumer.heartbeat.interval.ms", SET, "7000")
        assert alter(wire, GROUP, "own", change, only=True) == (0, None)
        assert heartbeat_interval(wire, "own") == 5000
        assert alter(wire, GROUP, "own", change) == (0, None)
        assert (heartbeat_interval(wire, "own"), heartbeat_interval(wire, "other")) == (7000, 5000)
        listed = wire.ask(ListConfigResourcesRequest([GROUP]), 1).config_resources
        assert [(each.resource_name, each.resource_type) for each in listed] == [("own", GROUP)]
        assert alter(wire, GROUP, "own", ("consumer.heartbeat.interval.ms", DELETE, None)) == (0, None)
        assert heartbeat_interval(wire, "own") == 5000
        assert alter(wire, GROUP, "", change)[0] == errors.INVALID_REQUEST
        assert alter(wire, GROUP, "own", ("consumer.heartbeat.interval.ms", SET, "1"))[0] == errors.INVALID_CONFIG
        assert alter(wire, GROUP, "own", ("consumer.heartbeat.interval.ms", APPEND, "1"))[0] == errors.INVALID_CONFIG
        assert alter(wire, 16, "x", ("interval.ms", SET, "1"))[0] == errors.INVALID_REQUEST


def test_replacing_forgets_the_rest(broker):
    def replace(*pairs):
        resource = LegacyResource(GROUP, "replaced", [LegacyConfig(*pair) for pair in pairs])
        [answer] = wire.ask(AlterConfigsRequest([resource], False), 2).responses
        return answer.error_code

    with Wire(broker.address) as wire:
        assert replace(("consumer.heartbeat.interval.ms", "9000"), ("consumer.session.timeout.ms", "50000")) == 0
        assert replace(("consumer.session.timeout.ms", "50000")) == 0
        assert heartbeat_interval(wire, "replaced") == 5000
        assert replace() == 0


@pytest.mark.system
def test_new_defaults_hold_for_topics_that_are_there(tmp_path):
    with Process(tmp_path / "data", "log.retention.hours=1") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        for future in admin.create_topics([NewTopic("t"), NewTopic("own", config={"retention.ms": "5"})]).values():
            future.result(10)

        def shown(kind, name, setting):
            [future] = admin.describe_configs([ConfigResource(kind, name)]).values()
            entry = future.result(10)[setting]
            return entry.value, entry.source, entry.is_read_only

        def change(name, value, operation=AlterConfigOpType.SET):
            entry = ConfigEntry("log.retention.ms", value, incremental_operation=operation)
            resource = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
            [future] = admin.incremental_alter_configs([resource]).values()
            return future.result(10)

        static = (str(3_600_000), ConfigSource.STATIC_BROKER_CONFIG.value, False)
        assert shown(ResourceType.TOPIC, "t", "retention.ms") == static
        change("0", "7000")
        assert shown(ResourceType.TOPIC, "t", "retention.ms") == (
            "7000",
            ConfigSource.DYNAMIC_BROKER_CONFIG.value,
            False,
        )
        assert shown(ResourceType.TOPIC, "own", "retention.ms")[0] == "5"
        assert shown(ResourceType.BROKER, "0", "log.retention.ms")[0] == "7000"
        assert shown(ResourceType.BROKER, "0", "num.partitions")[2]  # read-only
        broker.end()
        broker.start()
        assert shown(ResourceType.TOPIC, "t", "retention.ms")[0] == "7000"
        change("0", None, AlterConfigOpType.DELETE)
        assert shown(ResourceType.TOPIC, "t", "retention.ms") == static
        assert json.loads((broker.folder / "settings.json").read_text())["broker"] == {}


def test_a_default_that_a_topic_cannot_have_is_refused(broker):
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("lags", config={"max.compaction.lag.ms": "1000"})])["lags"].result(10)
    with Wire(broker.address) as wire:
        code, text = alter(wire, BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "2000"))
        assert code == errors.INVALID_REQUEST
        assert "topic lags" in text
        assert alter(wire, BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "900")) == (0, None)
        assert alter(wire, BROKER, "", ("log.cleanup.policy", APPEND, "compact")) == (0, None)
        assert alter(wire, BROKER, "", ("log.cleanup.policy", DELETE, None)) == (0, None)
        code, text = alter(wire, BROKER, "1", ("log.cleanup.policy", DELETE, None))
        assert (code, text) == (errors.INVALID_REQUEST, "Unexpected broker id, expected 0, but received 1")


def test_connections_are_bounded_at_once(broker):
    with Wire(broker.address) as wire:
        assert alter(wire, BROKER, "", ("max.connections", SET, "1")) == (0, None)
        with Wire(broker.address) as turned_away:
            assert turned_away.closed()
        assert alter(wire, BROKER, "", ("max.connections", DELETE, None)) == (0, None)
        assert heartbeat_interval(wire, "bounded") == 5000
