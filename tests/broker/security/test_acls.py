"""Access control lists by values: Kafka's rules one by one, and random sets against the rules said another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.security.acls import (
    Acl,
    Acls,
    Filter,
    Operation,
    Pattern,
    Permission,
    Resource,
    allowed,
    allowed_somewhere,
)
from millstream.broker.security.authorizer import Authorizer

Op, P = Operation, Permission
ALICE, BOB = "User:alice", "User:bob"


def acl(name="t", operation=Op.READ, permission=P.ALLOW, principal=ALICE, host="*", pattern=Pattern.LITERAL):
    return Acl(Resource.TOPIC, pattern, name, principal, host, operation, permission)


def ask(entries, operation=Op.READ, name="t", principal=ALICE, host="1.2.3.4", otherwise=False):
    acls = Acls()
    acls.replace(entries)
    return allowed(acls, principal, host, operation, Resource.TOPIC, name, otherwise)


@pytest.mark.parametrize(
    ("entries", "question", "answer"),
    [
        ([], {}, False),
        ([], {"otherwise": True}, True),
        ([acl(principal=BOB)], {"otherwise": True}, False),  # somebody else's entry closes the topic
        ([acl()], {}, True),
        ([acl()], {"principal": BOB}, False),
        ([acl()], {"operation": Op.WRITE}, False),
        ([acl()], {"name": "u"}, False),
        ([acl(principal="User:*")], {"principal": BOB}, True),
        ([acl(host="1.2.3.4")], {}, True),
        ([acl(host="1.2.3.5")], {}, False),
        ([acl("*")], {"name": "anything"}, True),
        ([acl("or", pattern=Pattern.PREFIXED)], {"name": "orders"}, True),
        ([acl("or", pattern=Pattern.PREFIXED)], {"name": "o"}, False),
        ([acl("or")], {"name": "orders"}, False),
        ([acl("*", pattern=Pattern.PREFIXED)], {"name": "orders"}, False),  # a prefix is no wildcard
        ([acl(operation=Op.ALL)], {"operation": Op.DELETE}, True),
        ([acl(), acl(permission=P.DENY)], {}, False),
        ([acl(), acl("*", permission=P.DENY, operation=Op.ALL, principal="User:*")], {}, False),
        ([acl(), acl(permission=P.DENY, host="9.9.9.9")], {}, True),
        ([acl(operation=Op.READ)], {"operation": Op.DESCRIBE}, True),
        ([acl(operation=Op.WRITE)], {"operation": Op.DESCRIBE}, True),
        ([acl(operation=Op.DELETE)], {"operation": Op.DESCRIBE}, True),
        ([acl(operation=Op.ALTER)], {"operation": Op.DESCRIBE}, True),
        ([acl(operation=Op.CREATE)], {"operation": Op.DESCRIBE}, False),
        ([acl(operation=Op.ALTER_CONFIGS)], {"operation": Op.DESCRIBE_CONFIGS}, True),
        ([acl(operation=Op.ALTER_CONFIGS)], {"operation": Op.DESCRIBE}, False),
        # denying an operation does not deny describe
        ([acl(operation=Op.ALL), acl(operation=Op.READ, permission=P.DENY)], {"operation": Op.DESCRIBE}, True),
        ([acl(operation=Op.READ), acl(operation=Op.DESCRIBE, permission=P.DENY)], {"operation": Op.READ}, True),
    ],
)
def test_the_rules(entries, question, answer):
    assert ask(entries, **question) is answer


NAMES = ["a", "ab", "abc", "b", "*"]
ENTRIES = st.builds(
    Acl,
    st.just(Resource.TOPIC),
    st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    st.sampled_from(NAMES),
    st.sampled_from([ALICE, BOB, "User:*"]),
    st.sampled_from(["*", "h"]),
    st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.CREATE]),
    st.sampled_from([P.ALLOW, P.DENY]),
)


def covers(entry, name):
    if entry.pattern == Pattern.PREFIXED:
        return name.startswith(entry.name)
    return entry.name in (name, "*")


@given(st.lists(ENTRIES, max_size=6), st.sampled_from(NAMES[:4]), st.booleans())
def test_random_sets(entries, name, otherwise):
    about = [e for e in entries if covers(e, name)]
    mine = [e for e in about if e.principal in (ALICE, "User:*") and e.host in ("*", "h")]
    denied = any(e.permission == P.DENY and e.operation in (Op.ALL, Op.READ) for e in mine)
    granted = any(e.permission == P.ALLOW and e.operation in (Op.ALL, Op.READ) for e in mine)
    expected = (granted and not denied) if about else otherwise
    assert ask(entries, name=name, host="h", otherwise=otherwise) is expected


@given(st.lists(ENTRIES, max_size=6), st.sampled_from(NAMES[:4]))
def test_allowed_somewhere_never_forbids_what_is_allowed(entries, name):
    acls = Acls()
    acls.replace(entries)
    if allowed(acls, ALICE, "h", Op.WRITE, Resource.TOPIC, name, False):
        assert allowed_somewhere(acls, ALICE, "h", Op.WRITE, Resource.TOPIC, False)


def test_somewhere():
    def somewhere(*entries, otherwise=False):
        acls = Acls()
        acls.replace(entries)
        return allowed_somewhere(acls, ALICE, "h", Op.WRITE, Resource.TOPIC, otherwise)

    write, deny = acl("t", Op.WRITE), acl("t", Op.WRITE, P.DENY)
    assert not somewhere()
    assert somewhere(otherwise=True)
    assert somewhere(write)
    assert not somewhere(write, deny)
    assert somewhere(acl("t", Op.WRITE, pattern=Pattern.PREFIXED), deny)
    assert not somewhere(write, acl("*", Op.WRITE, P.DENY))
    assert not somewhere(write, acl("", Op.WRITE, P.DENY, pattern=Pattern.PREFIXED))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(1, 1, None, None, None, 1, 1), "abcd"),
        (Filter(Resource.GROUP, 1, None, None, None, 1, 1), "d"),
        (Filter(Resource.TOPIC, Pattern.LITERAL, "orders", None, None, 1, 1), "a"),
        (Filter(Resource.TOPIC, Pattern.MATCH, "orders", None, None, 1, 1), "abc"),
        (Filter(Resource.TOPIC, Pattern.MATCH, "other", None, None, 1, 1), "c"),
        (Filter(Resource.TOPIC, Pattern.PREFIXED, None, None, None, 1, 1), "b"),
        (Filter(1, 1, None, BOB, None, 1, 1), "b"),
        (Filter(1, 1, None, None, "h", 1, 1), "c"),
        (Filter(1, 1, None, None, None, Op.WRITE, 1), "b"),
        (Filter(1, 1, None, None, None, 1, P.DENY), "c"),
    ],
)
def test_filters(wanted, found):
    entries = {
        "a": acl("orders"),
        "b": acl("or", Op.WRITE, principal=BOB, pattern=Pattern.PREFIXED),
        "c": acl("*", permission=P.DENY, host="h"),
        "d": acl("g")._replace(resource=Resource.GROUP),
    }
    assert "".join(k for k, e in entries.items() if wanted.matches(e)) == found


def test_the_authorizer_forgets_its_answers_when_the_lists_change():
    acls = Acls()
    authorizer = Authorizer(acls, frozenset({"User:root"}), False)
    assert not authorizer.allowed(ALICE, "h", Op.READ, Resource.TOPIC, "t")
    acls.add(acl())
    authorizer.changed()
    assert authorizer.allowed(ALICE, "h", Op.READ, Resource.TOPIC, "t")
    acls.remove(acl())
    authorizer.changed()
    assert not authorizer.allowed(ALICE, "h", Op.READ, Resource.TOPIC, "t")
    assert authorizer.allowed("User:root", "h", Op.ALTER, Resource.CLUSTER, "kafka-cluster")
    assert authorizer.operations("User:root", "h", Resource.GROUP, "g") == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
