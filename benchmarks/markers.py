"""Text of a page between two marker lines: read, and replaced."""


def between(page: str, begin: str, end: str) -> str:
    """What the page has between two markers."""
    return page.partition(begin)[2].partition(end)[0].strip()


def put_between(page: str, begin: str, end: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"
