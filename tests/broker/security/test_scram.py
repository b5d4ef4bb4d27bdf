"""SCRAM against RFC 7677's example, and against everything that must not pass."""

import base64
import hashlib
import hmac

import pytest

from millstream.broker.security import scram

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CREDENTIAL = scram.credential(
    "SCRAM-SHA-256", scram.salted_password("SCRAM-SHA-256", b"pencil", SALT, 4096), SALT, 4096
)


def exchange(mechanism="SCRAM-SHA-256", known=CREDENTIAL, nonce=SERVER_NONCE):
    return scram.Exchange(mechanism, {"user": known}.get, lambda _: known, nonce)


def prove(mechanism, password, first_bare, challenge):
    """The client's final message, made by the rules of RFC 5802."""
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    name = scram.HASHES[mechanism]
    salted = scram.salted_password(mechanism, password, base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", name)
    bare = f"c=biws,r={fields['r']}"
    signed = f"{first_bare},{challenge.decode()},{bare}".encode()
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677():
    it = exchange()
    assert it.first(FIRST) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert it.final(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert it.user == "user"


@pytest.mark.parametrize("mechanism", scram.HASHES)
def test_right_and_wrong_passwords(mechanism):
    salted = scram.salted_password(mechanism, b"s,e=cret", b"salt" * 4, 4096)
    known = scram.credential(mechanism, salted, b"salt" * 4, 4096)
    for password, right in ((b"s,e=cret", True), (b"s,e=cre", False), (b"", False)):
        it = exchange(mechanism, known, "nonce")
        challenge = it.first(b"n,,n=user,r=abc")
        final = prove(mechanism, password, "n=user,r=abc", challenge)
        if right:
            assert it.final(final).startswith(b"v=")
        else:
            with pytest.raises(scram.AuthenticationError, match="wrong password"):
                it.final(final)
        assert scram.matches(mechanism, known, password) is right


def test_an_unknown_user_is_challenged_and_then_refused_even_with_the_right_proof():
    it = scram.Exchange("SCRAM-SHA-256", lambda _: None, lambda _: CREDENTIAL, SERVER_NONCE)
    it.first(FIRST)
    with pytest.raises(scram.AuthenticationError, match="unknown user"):
        it.final(FINAL)


def test_names_with_commas_and_equal_signs():
    it = exchange()
    it.first(b"n,a=a=2Cb=3Dc,n=a=2Cb=3Dc,r=abc")
    assert it.user == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"y,,n=user,r=abc", b"p=tls-unique,,n=user,r=abc", b"n,,n=,r=abc", b"n,,n=user,r=", b"n,,n=user",
     b"n,a=other,n=user,r=abc", b"n,,n=user,r=abc,tokenauth=true", b"\xff\xfe", b"n,,n=user,r=" + b"x" * 5000],
)  # fmt: skip
def test_first_messages_that_are_refused(message):
    with pytest.raises(scram.AuthenticationError):
        exchange().first(message)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        FINAL.replace(b"biws", b"eSws"),
        FINAL.replace(b"rOpr", b"rOps"),
        FINAL[:-8],
        FINAL.replace(b"dHzb", b"dHzc"),
        FINAL + b"====",
        FINAL.split(b",p=")[0],
        FINAL.split(b"p=")[0] + b"p=AAAA",
    ],
)
def test_final_messages_that_are_refused(message):
    it = exchange()
    it.first(FIRST)
    with pytest.raises(scram.AuthenticationError):
        it.final(message)
