"""Filters over JSON values: small expressions such as `delay > 120 and origin == "JFK"`, read by a parser and never executed.

A name is a field of the message's JSON object, `a.b` one inside it; a field that is absent is null. There are literals, lists,
`and or not`, `== != < <= > >= in`, `not in`, `is`, `+ - * / %` and the functions of FUNCTIONS; `true`, `false` and `null` are as
in JSON. As in SQL, a comparison with null or of different types is not true, and neither is arithmetic with them.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable, Mapping
from typing import Any

from millstream.settings import MillstreamError

MAX_LENGTH = 2_000  # characters of an expression; Python's parser overflows its stack on far longer ones
MAX_DEPTH = 50  # of nested parentheses and operators, for the same reason
MAX_FIELDS = 1_000  # names of fields that are kept for the hint at a misspelt one
MAX_TEXT = 100_000  # characters of a text that `+` makes: a filter must not fill memory

_Node = Callable[[Mapping[str, Any]], Any]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_CONSTANTS = {"true": True, "false": False, "null": None}


def _text(function: Callable[[str, str], bool]) -> Callable[..., Any]:
    return lambda a, b: function(a, b) if isinstance(a, str) and isinstance(b, str) else None


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, lambda a: abs(a) if _number(a) else None),
    "contains": (2, _text(lambda a, b: b in a)),
    "ends": (2, _text(str.endswith)),
    "len": (1, lambda a: len(a) if isinstance(a, str | list | dict) else None),
    "lower": (1, lambda a: a.lower() if isinstance(a, str) else None),
    "starts": (2, _text(str.startswith)),
}


class Filter:
    """Whether a JSON object passes; notes what is suspicious: fields that no object had, types that never fit."""

    def __init__(self, node: _Node, names: set[str], mixed: dict[str, str]) -> None:
        self._node = node
        self._names = names
        self._mixed = mixed
        self._missing = set(names)
        self._known: dict[str, None] = {}
        self.asked = self.passed = 0

    def __call__(self, value: Mapping[str, Any]) -> bool:
        """Return whether an object passes."""
        self.asked += 1
        if self._missing:
            self._missing -= value.keys()
            if len(self._known) < MAX_FIELDS:
                self._known.update(dict.fromkeys(value))
        passes = self._node(value) is True
        self.passed += passes
        return passes

    def doubt(self) -> str | None:
        """Return why nothing may have passed, in words, or None when something has or nothing is suspicious."""
        if self.passed or not self.asked:
            return None
        if self._missing:
            name = min(self._missing)
            near = difflib.get_close_matches(name, self._known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"they have {', '.join(list(self._known)[:12]) or 'none'}."
            return f"none of {self.asked:,} events has the field {name!r} of the filter; {hint}"
        if self._mixed:
            part, kinds = next(iter(self._mixed.items()))
            return (
                f"{part!r} in the filter compares {kinds}, which is never true; text stands in quotes, numbers without."
            )
        return None


def parse(text: str) -> Filter:
    """Return the filter that an expression means: from a JSON object to whether it passes.

    Raises MillstreamError that quotes the part that is not understood.
    """
    if len(text) > MAX_LENGTH:
        raise MillstreamError(f"expected a filter of at most {MAX_LENGTH} characters, got {len(text)}.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise MillstreamError(
            f"the filter {text!r} cannot be read: {reason}. Write, for example: {_EXAMPLE}"
        ) from error
    compiler = _Compiler(text)
    return Filter(compiler.node(tree.body, 0), compiler.names, compiler.mixed)


_EXAMPLE = 'delay > 120 and origin == "JFK"'


class _Compiler:
    """Turns the syntax tree into nested functions, for the kinds of node that are listed here and no other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: set[str] = set()
        self.mixed: dict[str, str] = {}

    def node(self, tree: ast.expr, depth: int) -> _Node:
        """Return the function of one node."""
        if depth > MAX_DEPTH:
            raise MillstreamError(f"the filter is nested more than {MAX_DEPTH} deep.")
        make = getattr(self, f"_{type(tree).__name__.lower()}", None)
        if make is None:
            raise self._refuse(tree)
        node: _Node = make(tree, depth + 1)
        return node

    def _constant(self, tree: ast.Constant, depth: int) -> _Node:
        if not isinstance(value := tree.value, str | int | float | bool | None):
            raise self._refuse(tree)
        return lambda _: value

    def _name(self, tree: ast.Name, depth: int) -> _Node:
        if tree.id in _CONSTANTS:
            constant = _CONSTANTS[tree.id]
            return lambda _: constant
        self.names.add(tree.id)
        return lambda value: value.get(tree.id)

    def _attribute(self, tree: ast.Attribute, depth: int) -> _Node:
        inner, name = self.node(tree.value, depth), tree.attr
        return lambda value: found.get(name) if isinstance(found := inner(value), dict) else None

    def _subscript(self, tree: ast.Subscript, depth: int) -> _Node:
        inner, index = self.node(tree.value, depth), self.node(tree.slice, depth)
        return lambda value: _item(inner(value), index(value))

    def _list(self, tree: ast.List | ast.Tuple, depth: int) -> _Node:
        items = [self.node(item, depth) for item in tree.elts]
        return lambda value: [item(value) for item in items]

    _tuple = _list

    def _boolop(self, tree: ast.BoolOp, depth: int) -> _Node:
        parts = [self.node(part, depth) for part in tree.values]
        if isinstance(tree.op, ast.And):
            return lambda value: all(part(value) is True for part in parts)
        return lambda value: any(part(value) is True for part in parts)

    def _unaryop(self, tree: ast.UnaryOp, depth: int) -> _Node:
        inner = self.node(tree.operand, depth)
        if isinstance(tree.op, ast.Not):
            return lambda value: inner(value) is not True
        if isinstance(tree.op, ast.USub):
            return lambda value: -found if _number(found := inner(value)) else None
        raise self._refuse(tree)

    def _binop(self, tree: ast.BinOp, depth: int) -> _Node:
        if (function := _ARITHMETIC.get(type(tree.op))) is None:
            raise self._refuse(tree)
        left, right, add = self.node(tree.left, depth), self.node(tree.right, depth), isinstance(tree.op, ast.Add)
        return lambda value: _calculate(function, left(value), right(value), add)

    def _compare(self, tree: ast.Compare, depth: int) -> _Node:
        operands = [self.node(operand, depth) for operand in (tree.left, *tree.comparators)]
        operators = tree.ops
        part = ast.get_source_segment(self._text.strip(), tree) or self._text

        def compare(value: Mapping[str, Any]) -> bool:
            found = [operand(value) for operand in operands]
            if part not in self.mixed:
                self._note_mixed(part, operators, found)
            return all(_compare(op, a, b) for op, a, b in zip(operators, found, found[1:], strict=False))

        return compare

    def _note_mixed(self, part: str, operators: list[ast.cmpop], found: list[Any]) -> None:
        for op, a, b in zip(operators, found, found[1:], strict=False):
            if not isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) and None not in (a, b) and not _alike(a, b):
                self.mixed[part] = f"{_kind(a)} with {_kind(b)}"

    def _call(self, tree: ast.Call, depth: int) -> _Node:
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        if name not in FUNCTIONS or tree.keywords:
            raise self._refuse(tree, f"functions are {', '.join(FUNCTIONS)}")
        count, function = FUNCTIONS[name]
        arguments = [self.node(argument, depth) for argument in tree.args]
        if len(arguments) != count:
            raise self._refuse(tree, f"{name} takes {count}")
        return lambda value: function(*(argument(value) for argument in arguments))

    def _refuse(self, tree: ast.AST, why: str = "fields, literals, comparisons, and, or, not are") -> MillstreamError:
        part = ast.get_source_segment(self._text.strip(), tree) or self._text
        hint = why if why.startswith(("functions", *FUNCTIONS)) else f"{why} understood"
        return MillstreamError(f"the filter has {part!r}, which is not understood; {hint}. For example: {_EXAMPLE}")


def _kind(value: object) -> str:
    if _number(value):
        return "a number"
    return {str: "a text", bool: "true or false", list: "a list", dict: "an object"}.get(type(value), "null")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _alike(a: object, b: object) -> bool:
    return (_number(a) and _number(b)) or (type(a) is type(b) and isinstance(a, str | bool | list | dict))


def _compare(op: ast.cmpop, a: Any, b: Any) -> bool:
    if isinstance(op, ast.Is | ast.IsNot):
        return (a is b or (_alike(a, b) and a == b)) is isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        if a is None or not isinstance(b, list | dict | str) or (isinstance(b, str) and not isinstance(a, str)):
            return False
        if isinstance(b, dict) and not isinstance(a, str):
            return False
        inside = any(_alike(a, item) and a == item for item in b) if isinstance(b, list) else a in b
        return inside is isinstance(op, ast.In)
    if a is None or b is None:
        # `field == null` is what everybody writes first; here it means what they mean.
        return (a is b) is isinstance(op, ast.Eq) if isinstance(op, ast.Eq | ast.NotEq) else False
    if isinstance(op, ast.Eq | ast.NotEq):
        return (_alike(a, b) and a == b) is isinstance(op, ast.Eq)
    ordered = (_number(a) and _number(b)) or (isinstance(a, str) and isinstance(b, str))
    return ordered and _COMPARE[type(op)](a, b)


def _calculate(function: Callable[[Any, Any], Any], a: Any, b: Any, add: bool) -> Any:
    if add and isinstance(a, str) and isinstance(b, str):
        return a + b if len(a) + len(b) <= MAX_TEXT else None
    if not (_number(a) and _number(b)):
        return None
    try:
        return function(a, b)
    except (ZeroDivisionError, OverflowError):
        return None


def _item(value: Any, index: Any) -> Any:
    if isinstance(value, dict) and isinstance(index, str):
        return value.get(index)
    if (
        isinstance(value, list)
        and isinstance(index, int)
        and not isinstance(index, bool)
        and -len(value) <= index < len(value)
    ):
        return value[index]
    return None
