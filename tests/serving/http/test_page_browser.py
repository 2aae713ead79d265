"""The page in a real browser, where one is installed."""

import json
from typing import Any

import pytest
from browser import Browser, chromium

from deepinfer.serving.http.auth import new_key

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
SEND = "document.getElementById('text').value = {}; document.getElementById('composer').requestSubmit()"
EVIL = '<img src=x onerror="window.broken=1"><script>window.broken=1</script>'
DONE = "document.querySelector('.assistant') && !document.querySelector('.busy')"
# Replies of the chat path, one after the other; what was asked is kept in window.asked.
STUB = """
const real = window.fetch, replies = %s;
window.asked = [];
window.fetch = (path, options) => {
  if (path !== 'v1/chat/completions') return real(path, options);
  window.asked.push(JSON.parse(options.body));
  const [status, text] = replies.shift();
  return Promise.resolve(new Response(text, {status, headers: {'content-type': 'text/event-stream'}}));
};
"""


def send(browser: Browser, text: str) -> None:
    browser.run(SEND.format(json.dumps(text)))


def stream(*deltas: dict[str, Any], finish: str = "stop") -> tuple[int, str]:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return 200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_plan_charts_and_an_answer(browser: Browser, server) -> None:
    browser.go(f"{server.url}/")
    browser.until("document.getElementById('state').dataset.state === 'ready'")
    browser.until(f"document.getElementById('model').textContent === {json.dumps(server.model)}")
    browser.until(
        "document.getElementById('plan').innerText.includes('cache=prefix') || document.querySelector('.chip')"
    )
    browser.run("document.getElementById('max-tokens').value = 12")
    send(browser, "Tell me about a cat")
    browser.until(DONE)
    assert browser.run("document.querySelector('.user .text').textContent") == "Tell me about a cat"
    assert len(browser.run("document.querySelector('.assistant .text:not(.thinking .text)').textContent")) > 5
    assert "12 tokens" in browser.run("document.querySelector('.foot').textContent")
    browser.until("document.querySelector('.line-0').getAttribute('d')")
    assert "answer tokens" in browser.run("document.getElementById('live-note').textContent")
    shown = browser.run(
        "[...document.querySelectorAll('.tile:not([hidden]) figcaption')].map((each) => each.innerText)"
    )
    assert any("found in cache" in title for title in shown) and not any("draft" in title for title in shown)
    send(browser, "And of a dog?")
    browser.until("document.querySelectorAll('.assistant .foot:not(:empty)').length === 2")
    assert browser.problems == []


def test_thinking_calls_and_their_results(browser: Browser, fake_server) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": '}}
    first = stream(
        {"role": "assistant", "reasoning_content": "They want "},
        {"reasoning_content": "the weather."},
        {"content": "Let me look."},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Bern"}'}}]},
        finish="tool_calls",
    )
    browser.go(f"{fake_server.url}/")
    browser.run(STUB % json.dumps([first, stream({"content": "It rains."})]))
    browser.run("document.getElementById('system').value = 'Be brief.'")
    send(browser, "Weather in Bern?")
    browser.until("document.querySelector('.results')")
    thinking = browser.run("(({open, innerText}) => [open, innerText])(document.querySelector('.thinking'))")
    assert thinking[0] is False and thinking[1].startswith("Thought for")
    browser.run("document.querySelector('.thinking summary').click()")
    send(browser, "Well?")
    assert browser.run("document.activeElement === document.querySelector('.results textarea')"), "results come first"
    assert len(browser.run("window.asked")) == 1
    assert "They want the weather." in browser.run("document.querySelector('.thinking').innerText")
    assert browser.run("document.querySelector('.call').innerText").split() == [
        "Calls",
        "weather",
        "{",
        '"town":',
        '"Bern"',
        "}",
    ]
    browser.run(
        "document.querySelector('.results textarea').value = 'rain'; document.querySelector('.results').requestSubmit()"
    )
    browser.until("document.querySelectorAll('.assistant').length === 2 && !document.querySelector('.busy')")
    asked = browser.run("window.asked")[1]
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "tool"]
    assert asked["messages"][2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"town": "Bern"}'}
    assert asked["messages"][2]["reasoning_content"] == "They want the weather."
    assert asked["messages"][3] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    assert browser.problems == []


def test_nothing_that_a_model_writes_is_read_as_html(browser: Browser, fake_server) -> None:
    call = {"index": 0, "id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    told = stream({"reasoning_content": EVIL}, {"content": EVIL}, {"tool_calls": [call]}, finish="tool_calls")
    refused = (400, json.dumps({"error": {"message": EVIL}}))
    browser.go(f"{fake_server.url}/")
    browser.run(STUB % json.dumps([told, refused]).replace("</", "<\\/"))
    send(browser, EVIL)
    browser.until("document.querySelector('.results')")
    browser.run(
        "document.querySelector('.results textarea').value = 'x'; document.querySelector('.results').requestSubmit()"
    )
    browser.until("document.querySelector('.error')")
    shown = browser.run("document.getElementById('messages').textContent")
    assert shown.count(EVIL) >= 6
    assert browser.run("document.querySelectorAll('#messages img, #messages script').length") == 0
    assert browser.run("window.broken === undefined")
    assert all("400" in problem for problem in browser.problems)


def test_a_rate_counts_from_a_first_token_that_was_seen(browser: Browser, fake_server) -> None:
    """A call comes whole at the end: tokens by the milliseconds after it would be thousands a second."""
    usage = {"usage": {"completion_tokens": 101, "prompt_tokens": 9}, "choices": []}
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "weather", "arguments": "{}"}}]}
    told = """(async () => {
      const {Answer} = await import('./page/answer.js'), real = performance.now;
      let nowMs = 0;
      performance.now = () => nowMs;
      const answer = new Answer();
      for (const [atMs, delta] of %s) { nowMs = atMs; answer.add({choices: [{delta}]}); }
      answer.add(%s);
      nowMs = 10000;
      answer.end();
      performance.now = real;
      window.told = answer.foot.textContent;
    })()"""
    seen = ([[5000, {"content": "It"}], [6000, {"content": " rains"}]], "20 a second · ")
    held = ([[9990, call], [9999, call]], "10.1 a second in all")
    at_once = ([[9990, {"content": "It"}], [9991, {"content": " rains"}]], "10.1 a second in all")
    browser.go(f"{fake_server.url}/")
    for deltas, rate in (seen, held, at_once):
        browser.run("window.told = null")
        browser.run(f"void {told % (json.dumps(deltas), json.dumps(usage))}")
        browser.until("window.told")
        foot = browser.run("window.told")
        assert rate in foot and ("first after" in foot) == (deltas is not held[0])
    assert browser.problems == []


def test_stop_ends_the_answer_at_the_server(browser: Browser, make_server) -> None:
    server = make_server("executor.step_time_s=0.02")
    browser.go(f"{server.url}/")
    browser.run("document.getElementById('max-tokens').value = 400")
    send(browser, "Go on for long")
    browser.until("document.querySelector('.assistant .text:not(.thinking .text):not(:empty)')")
    assert server.call(lambda: server.service.admission.num_open) == 1
    browser.run("document.getElementById('stop').click()")
    browser.until(DONE)
    assert "stopped" in browser.run("document.querySelector('.foot').textContent")
    browser.until("document.getElementById('stop').hidden && !document.getElementById('send').hidden")
    for _ in range(100):
        if server.call(lambda: server.service.admission.num_open) == 0:
            break
    assert server.call(lambda: server.service.admission.num_open) == 0
    assert browser.problems == []


def test_a_failure_is_told_and_can_be_tried_again(browser: Browser, fake_server) -> None:
    broken = (
        stream({"content": "It"})[1].partition("\n\n")[0] + '\n\ndata: {"error": {"message": "the engine is lost"}}\n\n'
    )
    refused = (429, json.dumps({"error": {"message": "too many requests run"}}))
    browser.go(f"{fake_server.url}/")
    browser.run(STUB % json.dumps([refused, (200, broken), stream({"content": "Better."})]))
    send(browser, "Hello")
    for told in ("too many requests run", "the engine is lost"):
        browser.until(f"document.querySelector('.error')?.textContent === {json.dumps(told)}")
        browser.run("[...document.querySelectorAll('.message button')].at(-1).click()")
    browser.until("document.getElementById('messages').innerText.includes('Better.')")
    asked = browser.run("window.asked")
    assert len(asked) == 3 and all(len(each["messages"]) == 1 for each in asked)


def test_a_key_is_asked_for_and_kept_by_the_tab_alone(browser: Browser, make_server, tmp_path) -> None:
    secret, entry = new_key("alice")
    (tmp_path / "keys.yaml").write_text(entry)
    server = make_server(f"serving.api_keys={tmp_path / 'keys.yaml'}")
    browser.go(f"{server.url}/")
    browser.until("document.getElementById('settings').open")
    browser.until("document.getElementById('plan').innerText.includes('API key')")
    browser.until("document.getElementById('live-note').textContent.includes('API key')")
    change = "const key = document.getElementById('key'); key.value = {}; key.dispatchEvent(new Event('change'))"
    browser.run(f"{{ {change.format(json.dumps('wrong'))} }}")
    browser.until("document.getElementById('key-note').textContent.includes('does not know that API key')")
    assert browser.run("document.getElementById('settings').open")
    browser.run(f"{{ {change.format(json.dumps(secret))} }}")
    browser.until("!document.getElementById('settings').open")
    assert browser.run("document.activeElement === document.getElementById('text')"), "on with the chat"
    assert "does not" not in browser.run("document.getElementById('key-note').textContent")
    browser.until(f"document.getElementById('model').textContent === {json.dumps(server.model)}")
    browser.until("document.querySelector('.chip')")
    browser.run("document.getElementById('max-tokens').value = 5")
    send(browser, "Hello")
    browser.until("document.querySelector('.assistant .foot:not(:empty)')")
    browser.until("document.getElementById('live-note').textContent.includes('answer tokens')")
    assert browser.run("Object.values(sessionStorage).includes(document.getElementById('key').value)")
    assert browser.run("localStorage.length") == 0 and secret not in browser.run("document.cookie + location.href")
