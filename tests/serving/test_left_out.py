"""What all dialects let a client leave out."""

import json

from deepinfer.serving.chat_request import chat_call
from deepinfer.serving.messages_request import read_messages
from deepinfer.serving.responses_request import read_responses

HI = [{"role": "user", "content": "hi"}]


def test_a_model_may_be_left_out_on_all_and_an_empty_wish_asks_for_nothing() -> None:
    assert chat_call(json.dumps({"messages": HI}).encode()).ask.model is None
    assert read_responses(json.dumps({"input": "hi", "context_management": []}).encode()).chat().model is None
    messages = {"messages": HI, "max_tokens": 2, "context_management": {"edits": []}}
    assert read_messages(json.dumps(messages).encode()).model is None
