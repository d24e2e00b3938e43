"""Bodies of requests, parsed the way the gateway does, and refusals caught."""

import json

import pytest

from protocols.errors import InvalidRequest
from protocols.openai import parse_chat, parse_completion

USER = {"role": "user", "content": "Why is the sky blue?"}


def chat(**fields):
    return parse_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def completion(**fields):
    return parse_completion(json.dumps({"model": "m", "prompt": "Why?", **fields}).encode())


def refused(parse, **fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value
