"""What a data folder remembers of its application: addresses without secrets, and what each query reads."""

import pytest

from millstream.app.graph import Graph
from millstream.run.home import FILE, Home, recall, remember
from millstream.settings import Kafka, Settings

GRAPH = Graph(
    "shop", edges=(("source:ops", "topic:planes"), ("topic:orders", "query:totals"), ("topic:planes", "query:totals"))
)


def test_addresses_are_remembered_without_secrets(tmp_path):
    kafka = Kafka("k:9093", {"sasl.password": "sesame"})
    remember(tmp_path, GRAPH, Settings(kafka=kafka, postgres="host=db user=me password=sesame dbname=views"))
    assert "sesame" not in (text := (tmp_path / FILE).read_text()), text
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert recall(tmp_path) == Home(
        "shop", "k:9093", "user=me dbname=views host=db", {"shop.totals": ["orders", "planes"]}
    )
    remember(tmp_path, GRAPH, Settings(postgres="postgresql://me:sesame@db/views"))
    assert "sesame" not in (tmp_path / FILE).read_text() and recall(tmp_path).kafka == ""


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"version": 1}', '{"version": 9, "app": "a"}', '{"version": 1, "inputs": 3}', "[" * 50_000],
)
def test_what_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert recall(tmp_path) == Home() == recall(tmp_path / "absent")
