"""Where a batch ends, from what Spark notes of it: the position that is committed with the rows."""

from millstream.spark.outputs.stream import batch_ends


def offsets(checkpoint, number, *lines):
    folder = checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))


def test_all_sources_count(tmp_path):
    offsets(tmp_path, 3, '{"orders":{"0":17,"1":4}}', '{"payments":{"0":9}}')
    assert batch_ends(tmp_path, 3) == {("orders", 0): 17, ("orders", 1): 4, ("payments", 0): 9}


def test_a_source_without_news_has_no_position(tmp_path):
    offsets(tmp_path, 0, "-", '{"payments":{"0":9}}')
    assert batch_ends(tmp_path, 0) == {("payments", 0): 9}
