import pytest

from millstream.app import load
from millstream.settings import MillstreamError

ONE = 'import millstream as ms\napp = ms.App("one")\n'


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "application.py"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_a_module_and_a_variable(file):
    assert load(file(ONE)).name == "one"
    assert load(file(ONE + 'other = ms.App("two")\n') + ":other").name == "two"
    assert load("millstream.demo.flights").name == "flights"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "declares no application"),
        (ONE + 'b = ms.App("two")\n', r"several applications \(app, b\)"),
        (ONE + "1 / 0\n", "application.py line 3 failed: ZeroDivisionError"),
        (ONE + "def (:\n", "line 3 failed: SyntaxError"),
        (ONE + "\nms.App('X')\n", "application.py line 4: expected an application name"),
    ],
)
def test_what_cannot_be_loaded_names_the_line(file, text, message):
    with pytest.raises(MillstreamError, match=message):
        load(file(text))


def test_what_is_not_there():
    with pytest.raises(MillstreamError, match="does not exist"):
        load("missing.py")
    with pytest.raises(MillstreamError, match="there is no such one"):
        load("no_such_module_here")
