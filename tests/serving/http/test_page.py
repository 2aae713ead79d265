"""The page as files: what is sent, and what a browser is told to allow. See test_page_browser for how it works."""

import re
from html.parser import HTMLParser

import httpx
import pytest

from deepinfer.serving.http.auth import new_key
from deepinfer.serving.http.page import POLICY, parts


class Page(HTMLParser):
    """Tags with their attributes, and the text within scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag) -> None:
        self._in = ""

    def handle_data(self, data) -> None:
        if self._in in ("script", "style"):
            self.inline += data.strip()


INDEX = Page(parts()["index.html"].decode())
REFERENCES = [value for _, given in INDEX.tags for name, value in given.items() if name in ("src", "href") and value]
SCRIPTS = {name: data.decode() for name, data in parts().items() if name.endswith(".js")}


def test_the_page_and_its_parts_are_sent_with_a_policy(fake_server) -> None:
    for path in ("", *REFERENCES):
        reply = httpx.get(f"{fake_server.url}/{path}")
        assert reply.status_code == 200, path
        assert reply.headers["content-security-policy"] == POLICY and "unsafe" not in POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        again = httpx.get(f"{fake_server.url}/{path}", headers={"if-none-match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert httpx.get(fake_server.url).headers["content-type"] == "text/html; charset=utf-8"
    assert httpx.get(f"{fake_server.url}/page/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert httpx.head(fake_server.url).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "..%2fpage.py", "%2e%2e/page.py", ".", "index.html%00", "page.py"])
def test_nothing_else_is_sent(fake_server, name: str) -> None:
    reply = httpx.get(f"{fake_server.url}/page/{name}")
    assert reply.status_code == 404 and "error" in reply.json()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    assert not INDEX.inline
    assert not [name for _, given in INDEX.tags for name in given if name.startswith("on") or name == "style"]
    assert REFERENCES and all(re.fullmatch(r"page/[a-z]+\.(js|css|svg)", each) for each in REFERENCES)
    for name, data in parts().items():
        found = re.findall(
            r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", data.decode().replace("http://www.w3.org/2000/svg", "")
        )
        assert not found, f"{name}: {found}"


def test_scripts_know_no_way_to_read_text_as_html() -> None:
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|javascript:"
    assert not {name: re.findall(sinks, text) for name, text in SCRIPTS.items() if re.search(sinks, text)}


def test_every_import_is_a_part() -> None:
    for name, text in SCRIPTS.items():
        asked = re.findall(r'from "\./([^"]+)"', text)
        assert set(asked) <= set(parts()), name
    asked = {each for text in SCRIPTS.values() for each in re.findall(r'from "\./([^"]+)"', text)}
    assert asked | {"app.js"} == set(SCRIPTS), "no script is left over"


def test_every_field_has_a_name() -> None:
    text = parts()["index.html"].decode()
    for tag, given in INDEX.tags:
        if tag not in ("input", "textarea", "select"):
            continue
        inside = re.search(rf'<label[^>]*>[^<]+<{tag} id="{given["id"]}"', text)
        assert inside or f'for="{given["id"]}"' in text, given
    named = [given for tag, given in INDEX.tags if tag == "html"]
    assert named[0]["lang"] == "en"


def test_the_page_needs_no_key_and_what_it_shows_does(make_server, tmp_path) -> None:
    secret, entry = new_key("alice")
    (tmp_path / "keys.yaml").write_text(entry)
    server = make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}", ready=False)
    for path in ("/", "/page/app.js"):
        assert httpx.get(server.url + path).status_code == 200
    for path in ("/v1/stats", "/metrics", "/v1/plan"):
        assert httpx.get(server.url + path).status_code == 401
        assert httpx.get(server.url + path, headers={"authorization": f"Bearer {secret}"}).status_code == 200


def test_metrics_may_be_open(make_server, tmp_path) -> None:
    (tmp_path / "keys.yaml").write_text(new_key("alice")[1])
    server = make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}", "serving.metrics_open=true", ready=False)
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert httpx.get(f"{server.url}/v1/stats").status_code == 401
