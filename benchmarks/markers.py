"""Text of a page between two marker lines: read, and replaced."""


def misplaced(page: str, begin: str, end: str) -> str:
    """Why there is no one place between two markers; nothing where there is."""
    if begin not in page or end not in page:
        return f"lacks the lines {begin} and {end}, between which its table goes"
    if page.count(begin) > 1 or page.count(end) > 1:
        return f"has {begin} or {end} more than once: leave one of each"
    return "" if page.index(begin) < page.index(end) else f"has {end} before {begin}: turn them round"


def between(page: str, begin: str, end: str) -> str:
    """What the page has between two markers."""
    return page.partition(begin)[2].partition(end)[0].strip()


def put_between(page: str, begin: str, end: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def put_lines(page: str, begin: str, end: str, lines: str) -> str:
    """Whole lines between two marker lines, which stay as they are indented."""
    head, _, rest = page.partition(begin)
    inside, _, tail = rest.partition(end)
    indent = inside.rpartition("\n")[2]
    return f"{head}{begin}\n{lines}\n{indent}{end}{tail}"
