"""Occupancy of a fleet: computed in ClickHouse, where the spans are, so that only buckets travel."""
