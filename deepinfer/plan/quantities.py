"""Numbers as people read them: sizes, times, rates and counts, the same way wherever a plan or a difference is printed.

Whatever prints a quantity writes with these; only the columns of `cli.sweep_table` have a width of their own to keep.
"""

SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
DIGITS = 3  # significant ones, where nothing else is asked for


def size(num_bytes: float, digits: int = DIGITS) -> str:
    """Bytes in words: "14.4 MB", "2.15 GB", "144 GB", "2.99 TB"."""
    return _scaled(num_bytes, SIZES, digits)


def duration(seconds: float, digits: int = DIGITS) -> str:
    """A time: "1.25 s", "38.1 ms", "4.2 µs"."""
    return _scaled(seconds, TIMES, digits)


def amount(number: float, digits: int = DIGITS) -> str:
    """A count or a rate whose unit follows: "86.4 k", "1.79 G", "0.5"."""
    return _scaled(number, COUNTS, digits)


def fixed_size(num_bytes: int, *, in_mb: bool) -> str:
    """Bytes in MB or GB to the kB or MB, for columns that add up: "20,003.661 MB", "113.833 GB"."""
    return f"{num_bytes / 1e6:,.3f} MB" if in_mb else f"{num_bytes / 1e9:,.3f} GB"


def counted(number: int, noun: str) -> str:
    """ "1 rank", "1,024 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quantity(value: float, unit: str = "", digits: int = 4) -> str:
    """A number with its unit: sizes and times in words, whole numbers whole, others to `digits` places."""
    if unit in ("B", "bytes"):
        return size(value, digits)
    if unit == "s":
        return duration(value, digits)
    whole = isinstance(value, int) or abs(value) >= 10**digits
    return f"{f'{value:,.0f}' if whole else _short(value, digits)} {unit}".rstrip()


def _scaled(value: float, scales: tuple[tuple[str, float], ...], digits: int) -> str:
    """In the largest unit of which there is one, once rounded: 999,999 B are 1 MB."""
    least = 1 - 0.5 * 10**-digits
    name, scale = next((entry for entry in scales if abs(value) >= least * entry[1]), scales[-1])
    if not value:
        name, scale = next(entry for entry in scales if entry[1] == 1)
    return f"{_short(value / scale, digits)} {name}".rstrip()


def _short(number: float, digits: int) -> str:
    """So many significant digits, and all of those before the point."""
    rounds_up = abs(number) >= 10 ** (digits - 1) - 0.5 * 0.1
    return f"{number:,.0f}" if rounds_up else f"{number:,.{digits}g}"
