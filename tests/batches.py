"""Record batches as a client with a fault makes them: header and checksum are right, what is inside is not."""

from millstream.protocol import records


def packed(codec: int, inside: str, now: int) -> bytes:
    """A compressed batch of 3 records whose header and checksum are right, but not always what is inside."""
    made = records.build([(b"k", b"v%d" % i) for i in range(3)], [now, now + 7, now + 3])
    body, header = bytes(made[records.HEADER_SIZE :]), records.header(made)
    first = body[0] // 2 + 1  # the bytes of the first record
    count, newest, attributes = 3, now + 7, codec
    match inside:
        case "no records":
            body = b"BAD" * 20
        case "nothing":
            body = b""
        case "zeros":
            body = bytes(60)
        case "more":
            count = 4
        case "fewer":
            count = 2
        case "late":
            newest = now + 1000
        case "early":
            newest = -1
        case "future":
            body = record(0, 2_000_000_000_000) + body[first:]
        case "body":
            body = record(0, more=b"xx") + body[first:]
        case "value":
            body = record(0, size=40) + body[first:]
        case "headers":
            body = record(0, headers=b"\x01") + body[first:]
        case "trailing":
            body += b"\0"
        case "stamped":
            attributes |= records.LOG_APPEND_TIME
        case "numbers":
            body = record(0) + record(5) + record(6)
    if inside in ("cut", "half"):
        body = b"".join(record(i, value=bytes([i] * 90)) for i in range(3))
    data = bytes(records.compress(codec, body))
    data = {"garbage": b"BAD" * 20, "no payload": b"", "cut": data[:-6], "half": data[: len(data) // 2]}.get(
        inside, data
    )
    out = bytearray(records.HEADER_SIZE) + data
    header = header._replace(
        length=len(out) - records.OVERHEAD, attributes=attributes, last_offset_delta=count - 1, record_count=count,
        max_timestamp=newest,
    )  # fmt: skip
    records.HEADER.pack_into(out, 0, *header)
    records.seal(out)
    return bytes(out)


def record(
    offset: int, time: int = 0, value: bytes = b"v", size: int | None = None, headers: bytes = b"\0", more: bytes = b""
) -> bytes:
    inside, out = bytearray(b"\0"), bytearray()
    records.put_varint(inside, time)
    records.put_varint(inside, offset)
    inside += b"\2k"
    records.put_varint(inside, len(value) if size is None else size)
    inside += value + headers + more
    records.put_varint(out, len(inside))
    return bytes(out + inside)
