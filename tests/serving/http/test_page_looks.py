"""How the page looks in a real browser, and the small parts of its scripts."""

import pytest
from browser import Browser, chromium

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
# The lowest contrast of any text with what lies behind it, and which two colours have it.
CONTRAST = """(() => {
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement('i');
  document.body.append(probe);
  const straight = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (name) => {
    probe.style.color = style.getPropertyValue(name);
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map((v) => straight(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = ([a, b]) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const inks = ['--ink', '--soft', '--accent', '--bad', '--good', '--wait', '--second'];
  const pairs = inks.flatMap((ink) => ['--back', '--card', '--sunk'].map((back) => [ink, back]));
  pairs.push(['--ink', '--mine'], ['--on-accent', '--accent'], ['--card', '--bad']);
  const found = pairs.map((pair) => [ratio(pair), ...pair]);
  probe.remove();
  return found.sort((one, other) => one[0] - other[0])[0];
})()"""
CUTS = """(async () => {
  const { events } = await import('/page/api.js');
  const text = 'data: {"a": "ä€😀"}\\n\\n: ping\\n\\nevent: x\\ndata: {"b": 2}\\n\\ndata: [DONE]\\n\\ndata: {"c": 3}\\n\\n';
  const bytes = new TextEncoder().encode(text);
  const seen = new Set();
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const start = (to) => {
      to.enqueue(bytes.slice(0, cut));
      to.enqueue(bytes.slice(cut));
      to.close();
    };
    const got = [];
    for await (const event of events(new Response(new ReadableStream({ start })))) got.push(event);
    seen.add(JSON.stringify(got));
  }
  return [...seen];
})()"""


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_no_width_needs_to_scroll_sideways(browser: Browser, server, width: int) -> None:
    browser.dress(width, 700)
    browser.go(f"{server.url}/")
    browser.until("document.querySelector('.chip')")
    browser.run("document.getElementById('settings').open = true")
    for view in ("chat", "live", "plan"):
        browser.run(f"document.querySelector('[data-goto={view}]').click()")
        wide = "[...document.querySelectorAll('body, main, #chat, aside')].map((e) => e.scrollWidth - e.clientWidth)"
        assert max(browser.run(wide)) <= 0, view
    shown = browser.run("[chat, live, plan].filter((each) => each.checkVisibility()).map((each) => each.id)")
    assert shown == (["plan"] if width < 960 else ["chat", "plan"])


def test_light_and_dark_are_readable(browser: Browser, fake_server) -> None:
    browser.go(f"{fake_server.url}/")
    back = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.dress(1280, 800, dark=dark)
        assert browser.run(CONTRAST)[0] >= 4.5, browser.run(CONTRAST)
        seen.append(browser.run(back))
    browser.run("document.getElementById('theme').click()")
    assert browser.run(back) == seen[0] != seen[1], "the button wins over the system"
    assert browser.run(CONTRAST)[0] >= 4.5


def test_everything_that_can_be_reached_has_a_name(browser: Browser, fake_server) -> None:
    browser.go(f"{fake_server.url}/")
    browser.run("document.getElementById('settings').open = true")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    focusable = [
        node
        for node in nodes
        if any(each["name"] == "focusable" and each["value"].get("value") for each in node.get("properties", ()))
        and node["role"]["value"] not in ("RootWebArea", "WebArea")
    ]
    assert len(focusable) > 10
    assert not [node["role"]["value"] for node in focusable if not node.get("name", {}).get("value")]


def test_events_survive_every_cut(browser: Browser, fake_server) -> None:
    browser.go(f"{fake_server.url}/")
    found = browser.run(CUTS)
    assert found == ['[{"a":"ä€😀"},{"b":2}]']


def test_numbers_and_lines_are_drawn_right(browser: Browser, fake_server) -> None:
    browser.go(f"{fake_server.url}/")
    found = browser.run("""(async () => {
      const { ceiling, path, together } = await import('/page/chart.js');
      const { bytes, short } = await import('/page/elements.js');
      return {
        tops: [0, 1, 1.2, 99, 101].map(ceiling),
        pieces: [[1, null, 2, 1], [1, ...Array(7).fill(null), 2, 1]].map((all) => path(all, 9, 2).match(/M/g).length),
        empty: path([null, null], 4, 2),
        told: [together(['1 ms', '2 ms']), together(['900 ms', '1.1 s']), together(['3', '4']), together(['–', '–'])],
        short: [null, undefined, 0, 1.234, 1234, 12345, 1.5e6].map(short),
        bytes: [12, 1500, 3.67e6].map(bytes),
      };
    })()""")
    assert found == {
        "tops": [1, 1, 1.5, 100, 150],
        "pieces": [1, 2],
        "empty": "",
        "told": ["1 / 2 ms", "900 ms / 1.1 s", "3 / 4", "– / –"],
        "short": ["–", "–", "0", "1.23", "1,234", "12.3 k", "1.50 M"],
        "bytes": ["12 B", "1.50 kB", "3.67 MB"],
    }
