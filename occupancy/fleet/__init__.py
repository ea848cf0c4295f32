"""Occupancy of a fleet: computed in ClickHouse, where the spans are, so that only buckets travel."""

SCHEMES = ("clickhouse", "clickhouses", "chdb")


def is_fleet(address: str) -> bool:
    """Whether an address is one whose calls are counted where they are, not read one by one."""
    scheme, colon, _ = address.partition("://")
    return bool(colon) and scheme in SCHEMES
