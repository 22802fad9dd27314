"""The hash XXH64 with the seed 0, by which Parquet's Bloom filters know a value."""

first, second, third, fourth, fifth = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
mask = 2**64 - 1
stripe_bytes = 32
# How far each of the four lanes is turned when they become one.
turns = (1, 7, 12, 18)


def xxh64(content: bytes) -> int:
    whole = len(content) - len(content) % stripe_bytes
    found = of_stripes(content[:whole]) if whole else fifth
    return scrambled(with_rest(found + len(content) & mask, content[whole:]))


def of_stripes(content: bytes) -> int:
    lanes = [first + second & mask, second, 0, -first & mask]
    for at in range(0, len(content), 8):
        lane = at // 8 % 4
        lanes[lane] = mixed(lanes[lane], word(content, at, 8))
    found = sum(turned(lane, by) for lane, by in zip(lanes, turns, strict=True)) & mask
    for lane in lanes:
        found = (found ^ mixed(0, lane)) * first + fourth & mask
    return found


def with_rest(found: int, rest: bytes) -> int:
    """The hash with the last bytes, of which there are fewer than a stripe: by eight, by four, and one by one."""
    at = 0
    while at + 8 <= len(rest):
        found = turned(found ^ mixed(0, word(rest, at, 8)), 27) * first + fourth & mask
        at += 8
    if at + 4 <= len(rest):
        found = turned(found ^ word(rest, at, 4) * first & mask, 23) * second + third & mask
        at += 4
    for byte in rest[at:]:
        found = turned(found ^ byte * fifth & mask, 11) * first & mask
    return found


def scrambled(found: int) -> int:
    found = (found ^ found >> 33) * second & mask
    found = (found ^ found >> 29) * third & mask
    return found ^ found >> 32


def mixed(lane: int, value: int) -> int:
    return turned(lane + value * second & mask, 31) * first & mask


def turned(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & mask


def word(content: bytes, at: int, size_bytes: int) -> int:
    return int.from_bytes(content[at : at + size_bytes], "little")
