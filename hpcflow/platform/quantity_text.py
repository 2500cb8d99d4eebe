"""Quantity text: counts, bytes, FLOPs, times and ratios with units, for tables and messages."""

from __future__ import annotations

import math

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
SHORT_UNITS = (("us", 1e6), ("ms", 1e3), ("s", 1.0))  # of times, and how many are a second
LEAST_MINUTES_S, LEAST_DAYS_H = 99.95, 96  # shorter times are in seconds, in hours
LEAST_RATIO = 9.995  # a smaller excess is in percent


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1 rank` or `4 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_bytes(count: float | None) -> str:
    """Bytes such as `1.5 MB`; exact below 10,000, `?` for None."""
    if count is None:
        return "?"
    return f"{count:.0f} B" if abs(count) < 10_000 else _scaled(count, "B")


def rounded_bytes(count: float) -> str:
    """Measured bytes, such as `1.5 kB`, in three digits."""
    return _scaled(count, "B")


def format_flops(count: float) -> str:
    """A number of floating-point operations, such as `1.5 GFLOP`."""
    return _scaled(count, "FLOP")


def format_milliseconds(seconds: float) -> str:
    """Seconds as milliseconds, such as `0.012 ms`: only for the boxes of a plan's page."""
    return f"{1e3 * seconds:.3g} ms"


def format_seconds(seconds: float) -> str:
    """A time in the unit that fits: `3 us`, `12 ms`, `1.5 s`, `4:05 min`, `3:20 h`, `264 days`."""
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if not size or not math.isfinite(size):
        return f"{seconds:g} s"
    if size < LEAST_MINUTES_S:  # 0.9995 ms would be printed as 1e+03 us
        unit, scale = next(
            (unit, scale) for unit, scale in SHORT_UNITS if float(f"{size * scale:.3g}") < 1000
        )
        return f"{sign}{size * scale:.3g} {unit}"
    minutes, secs = divmod(round(size), 60)
    hours, hour_minutes = divmod(minutes, 60)
    if hours >= LEAST_DAYS_H:
        return f"{sign}{size / 86400:,.0f} days"
    return sign + (f"{hours}:{hour_minutes:02} h" if hours else f"{minutes}:{secs:02} min")


def format_ratio(ratio: float) -> str:
    """How many times as much: `2.5 times`, `26 times`, `1,200 times`."""
    return f"{ratio:.2g} times" if ratio < 9.95 else f"{ratio:,.0f} times"


def format_excess(share: float) -> str:
    """How much more, as a part: `2.5 %`, `250 %`; from 1,000 % as a ratio: `26 times`."""
    return format_ratio(1 + share) if share >= LEAST_RATIO else f"{100 * share:.3g} %"


def _scaled(number: float, unit: str) -> str:
    power = 0
    while abs(number) >= 999.5 and power < len(PREFIXES) - 1:  # 999.5 would be printed as 1e+03
        number, power = number / 1000, power + 1
    return f"{number:.3g} {PREFIXES[power]}{unit}"
