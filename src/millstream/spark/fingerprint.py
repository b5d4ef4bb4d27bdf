"""What a query keeps in state, as a fingerprint in its checkpoint, and whether a changed function continues with it.

Spark starts a query whose window, filter or aggregate has changed as long as the types stay the same, and mixes what the old
function kept with what the new one makes: the numbers are wrong, and nobody says so. Therefore what state depends on is noted
when a query starts, in `state.json` (version 1) in its checkpoint, and compared before it starts again.

State depends on the operators that keep it, and on everything between them and the inputs: filters, and the definitions of the
columns that they use. It does not depend on what comes after the last of them, on names of results, or on columns that nobody
uses. What a Python function does is not seen, only its name and what it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from millstream.settings import MillstreamError
from millstream.settings.files import replace
from millstream.spark.analysis import INPUT, WATERMARK, analyzed, is_input, items, state_of

FILE = "state.json"
VERSION = 1
MAX_WORDS = 200  # characters of an expression in a message

Word = Literal["none", "new", "fits", "would mix", "rebuild"]

_NUMBERS = re.compile(r"#\d+L?")
_TUMBLING = re.compile(r"precisetimestampconversion\(([\w.`]+)\) - (-?\d+)L?\) % (\d+)L?\)")
_TIME_WINDOW = "spark.timeWindow"  # Spark's metadata of a column that F.window made


class Operator(msgspec.Struct, frozen=True):
    """One operator that keeps state. kind: in users' words.   keys, values: their expressions.   types: of both."""

    kind: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    types: tuple[str, ...]


class Fingerprint(msgspec.Struct, frozen=True):
    """What the state of a query depends on; without operators it has none.

    spark: the version that wrote the expressions.   mode: the output mode.
    columns: the definitions of columns that state depends on, by name.
    rows: what lets rows in, splits them and brings them together, below the last operator.
    lateness: the delays of the watermarks, in ms.
    """

    spark: str = ""
    mode: str = ""
    operators: tuple[Operator, ...] = ()
    columns: dict[str, tuple[str, ...]] = {}
    rows: tuple[str, ...] = ()
    lateness: tuple[int, ...] = ()
    version: int = VERSION


@dataclass(frozen=True)
class Verdict:
    """What a change means.

    word: "none": nothing is kept; "new": there is no state yet; "fits": it continues; "would mix": Spark would start and mix old
    with new; "rebuild": the state has another shape.   why: what has changed.
    """

    word: Word
    why: str = ""

    @property
    def refused(self) -> bool:
        """Whether the query must not start on that state."""
        return self.word in ("would mix", "rebuild")


def of(frame: DataFrame, mode: str) -> Fingerprint:
    """Return the fingerprint of what a function made of streams."""
    nodes = list(_below_last(analyzed(frame)))
    kept = [(node, words) for node in nodes if (words := state_of(node))]
    if not kept:
        return Fingerprint(pyspark.__version__, mode)
    joined = tuple(_joined(frame)) if any(node.nodeName() == "Join" for node, _ in kept) else ()
    definitions = _definitions(nodes)
    expressions = [e for node, _ in kept for e in items(node.expressions())]
    rows = [e for node in nodes if not state_of(node) and node.nodeName() != "Project" for e in _conditions(node)]
    sources = sorted(_source(node) for node in nodes if not node.children().size() or is_input(node))
    return Fingerprint(
        spark=pyspark.__version__,
        mode=mode,
        operators=tuple(_operator(node, words, joined) for node, words in kept),
        columns=_used([*expressions, *(e for _, e in rows if e is not None)], definitions),
        rows=tuple(sorted({text for text, _ in rows} | {f"input {name}" for name in sources})),
        lateness=tuple(sorted({d for e in expressions for a in _references(e) if (d := _lateness(a)) is not None})),
    )


def compare(before: Fingerprint | None, now: Fingerprint) -> Verdict:
    """Return what becomes of the state that was noted `before`. Pure."""
    if before is None:
        return Verdict("new" if now.operators else "none")
    old, new = [o.kind for o in before.operators], [o.kind for o in now.operators]
    if not old and not new:
        return Verdict("none")
    if old != new:
        return Verdict("rebuild", f"it kept the state of {_list(old)}, and now keeps that of {_list(new)}")
    if before.spark != now.spark:
        return Verdict(
            "fits", f"noted by Spark {before.spark}, whose expressions are not compared with those of {now.spark}"
        )
    changes = list(_changes(before, now))
    if [o.types for o in before.operators] != [o.types for o in now.operators]:
        return Verdict("rebuild", "; ".join(changes) or "its keys or values have other types")
    if changes:
        return Verdict("would mix", "; ".join(changes))
    if before.lateness != now.lateness:
        return Verdict("fits", "the lateness has changed, which counts from now on")
    return Verdict("fits")


def noted(checkpoint: Path) -> Fingerprint | None:
    """Return what the checkpoint's state was made by; None when no batch was finished, or nothing was noted.

    Raises MillstreamError for a file that cannot be read.
    """
    if not any(p.name.isdigit() for p in (checkpoint / "commits").glob("*")):
        return None
    path = checkpoint / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # of an earlier version
        return None
    try:
        found = msgspec.json.decode(content, type=Fingerprint)
        if found.version != VERSION:
            raise ValueError(f"version {found.version}, expected {VERSION}")
        return found
    except ValueError as error:
        raise MillstreamError(
            f"{path} cannot be read ({error}): it says which function the query's state is of. Remove it to go on with that state"
            " unchecked."
        ) from error


def keep(checkpoint: Path, now: Fingerprint, where: str, again: str) -> None:
    """Compare with what was noted, and note what runs now. where: how messages begin.   again: how to begin without the state.

    Raises MillstreamError when the state is of another function.
    """
    verdict = compare(noted(checkpoint), now)
    if verdict.refused:
        raise MillstreamError(f"{where}: {refusal(verdict, again)}")
    content = msgspec.json.encode(now)
    path = checkpoint / FILE
    if not path.exists() or path.read_bytes() != content:
        checkpoint.mkdir(parents=True, exist_ok=True)
        replace(path, content)


def refusal(verdict: Verdict, again: str) -> str:
    """Return in words why a query does not start on its state, and what to do."""
    what = "would be mixed with new results" if verdict.word == "would mix" else "does not fit any more"
    return f"the function was changed, and what it has kept {what}: {verdict.why}. Change it back, or begin again: {again}."


def _below_last(plan: Any) -> Iterator[Any]:
    """The nodes from the last operators with state down to the inputs' marks, which are given but not entered."""
    if state_of(plan):
        yield from _down(plan)
    elif not is_input(plan):
        for child in items(plan.children()):
            yield from _below_last(child)


def _down(plan: Any) -> Iterator[Any]:
    yield plan
    if not is_input(plan):
        for child in items(plan.children()):
            yield from _down(child)


def _joined(frame: DataFrame) -> Iterator[str]:
    """The columns that joins of streams keep of each side: those that are used above them, which the optimizer knows."""
    optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
    for node in _down(optimizer.execute(analyzed(frame))):
        if node.nodeName() == "Join" and state_of(node):
            yield from (str(side.schema().simpleString()) for side in (node.left(), node.right()))


def _operator(node: Any, words: str, joined: tuple[str, ...]) -> Operator:
    name = node.nodeName()
    if name == "Aggregate":
        keys, values = list(items(node.groupingExpressions())), list(items(node.aggregateExpressions()))
        made = [v for v in values if v.getClass().getSimpleName() == "Alias" and not _is_attribute(v.child())]
        return Operator(words, _texts(keys), _texts(v.child() for v in made), _types([*keys, *made]))
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        keys = list(items(node.keys()))
        return Operator(words, _texts(keys), (), _types(keys))
    if name == "Join":
        condition = node.condition()
        found = list(_conjuncts(condition.get())) if condition.isDefined() else []
        return Operator(f"{words} ({node.joinType().sql().lower()})", tuple(sorted(_texts(found))), (), joined)
    grouping = [e for e in items(node.expressions()) if _is_attribute(e)]
    return Operator(words, tuple(sorted(set(_texts(grouping)))), (), (str(node.schema().simpleString()),))


def _definitions(nodes: Iterable[Any]) -> dict[int, tuple[str, Any]]:
    """Name and expression of the columns that are made on the way, by the ids that Spark gives them."""
    return {
        e.exprId().id(): (str(e.name()), e)
        for node in nodes
        if node.nodeName() == "Project"
        for e in items(node.projectList())
        if e.getClass().getSimpleName() == "Alias"
    }


def _used(expressions: Iterable[Any], definitions: Mapping[int, tuple[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The definitions that the expressions depend on, directly or through others."""
    found: dict[str, set[str]] = {}
    seen: set[int] = set()
    left = [a for e in expressions for a in _references(e)]
    while left:
        number = left.pop().exprId().id()
        if number in seen or number not in definitions:
            continue
        seen.add(number)
        name, alias = definitions[number]
        found.setdefault(name, set()).add(_definition(alias))
        left += _references(alias)
    return {name: tuple(sorted(texts)) for name, texts in sorted(found.items())}


def _definition(alias: Any) -> str:
    text = _text(alias.child())
    if alias.metadata().contains(_TIME_WINDOW) and (window := _TUMBLING.search(text)):
        start, size = int(window[2]) / 1e6, int(window[3]) / 1e6  # windows that overlap are an operator, no column
        return f"windows of {size:g} s over {window[1]}" + (f" from {start:g} s" if start else "")
    return text


def _conditions(node: Any) -> Iterator[tuple[str, Any]]:
    """What a node without state does to rows, in parts whose order means nothing, each with its expression."""
    if is_input(node) or not node.children().size():
        return
    name = str(node.nodeName())
    if name == "SubqueryAlias":
        return
    prefix = f"{name} {node.joinType().sql()}" if name == "Join" else name
    expressions = [part for e in items(node.expressions()) for part in (_conjuncts(e) if name == "Filter" else [e])]
    if not expressions:
        yield prefix, None
    for expression in expressions:
        if _is_attribute(expression) and name != "Filter":
            continue  # a column that passes through
        text = _text(expression)
        if name != "Filter" or not text.endswith(" IS NOT NULL)"):  # Spark adds those of windows by itself
            yield f"{prefix}: {text}", expression


def _source(node: Any) -> str:
    """What an input or a leaf of a plan reads."""
    while node.children().size():
        node = node.children().apply(0)
    try:
        if node.isStreaming():
            return str(node.extraOptions().get("subscribe"))
        return str(node.relation().location().toString())
    except Py4JError:  # of a kind that is not ours: its name is what is known of it
        return str(node.nodeName())


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.getClass().getSimpleName() == "And":
        for child in items(condition.children()):
            yield from _conjuncts(child)
    else:
        yield condition


def _references(expression: Any) -> list[Any]:
    return list(items(expression.references().toSeq()))


def _is_attribute(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference")


def _lateness(attribute: Any) -> int | None:
    metadata = attribute.metadata()
    return int(metadata.getLong(WATERMARK)) if metadata.contains(WATERMARK) else None


def _text(expression: Any) -> str:
    return _NUMBERS.sub("", str(expression.sql())).replace(f"{INPUT}.", "")


def _texts(expressions: Iterable[Any]) -> tuple[str, ...]:
    return tuple(_text(e) for e in expressions)


def _types(expressions: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(e.dataType().simpleString()) for e in expressions)


def _changes(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    for old, new in zip(before.operators, now.operators, strict=True):
        if old.keys != new.keys:
            yield f"{old.kind} was by {_list(old.keys)} and is by {_list(new.keys)}"
        if sorted(old.values) != sorted(new.values):
            yield f"{old.kind} was of {_list(old.values)} and is of {_list(new.values)}"
    for name in sorted(before.columns.keys() | now.columns.keys()):
        was, made = (of.columns.get(name, ("a column of the input",)) for of in (before, now))
        if was != made:
            yield f"{name!r} was {_list(was)} and is {_list(made)}"
    gone, added = set(before.rows) - set(now.rows), set(now.rows) - set(before.rows)
    if gone:
        yield f"gone: {_list(sorted(gone))}"
    if added:
        yield f"new: {_list(sorted(added))}"
    if before.mode != now.mode:
        yield f"its output mode was {before.mode} and is {now.mode}"


def _list(words: Sequence[str]) -> str:
    return ", ".join(w if len(w) <= MAX_WORDS else w[:MAX_WORDS] + "…" for w in words) or "nothing"
