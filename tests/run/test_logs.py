"""The bounded log file of a process."""

from millstream.run.logs import LogFile


def test_lines_are_appended_over_lives(tmp_path):
    for word in ("one", "two"):
        log = LogFile(tmp_path / "a.log")
        log.line(word)
        log.close()
    assert (tmp_path / "a.log").read_text() == "one\ntwo\n"


def test_a_full_file_is_set_aside_and_the_oldest_dropped(tmp_path):
    log = LogFile(tmp_path / "a.log", max_bytes=100, keep=2)
    for n in range(100):
        log.line(f"line {n:03}")
    log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert all(p.stat().st_size <= 100 for p in tmp_path.iterdir())
    lines = [line for name in ("a.log.2", "a.log.1", "a.log") for line in (tmp_path / name).read_text().splitlines()]
    assert lines == [f"line {n:03}" for n in range(100 - len(lines), 100)]


def test_the_last_lines_are_those_of_the_present_life(tmp_path):
    log = LogFile(tmp_path / "a.log")
    for n in range(50):
        log.line(str(n))
    assert list(log.last) == [str(n) for n in range(30, 50)]
    log.forget()
    log.note("the supervisor's own")
    assert list(log.last) == []
    log.close()


def test_a_folder_that_went_away_loses_lines_not_the_process(tmp_path):
    log = LogFile(tmp_path / "nowhere" / "a.log")
    log.line("lost")
    assert list(log.last) == ["lost"]
    log.close()
