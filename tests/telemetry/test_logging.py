"""Log lines: their shape, and that no secret is in them."""

from __future__ import annotations

import io
import logging

import orjson
import pytest

from telemetry.logging import configure_logging, redacted


@pytest.fixture
def log_to():
    """Configures logging into a string; puts the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in ("httpx", "httpcore", "uvicorn.access")}

    def configure(style: str, level: str = "INFO") -> io.StringIO:
        stream = io.StringIO()
        configure_logging(stream, style=style, level=level)
        return stream

    yield configure
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, former in quiet.items():
        logging.getLogger(name).setLevel(former)


def test_a_json_line_is_one_object_with_id_and_fields(log_to):
    stream = log_to("json")

    logging.getLogger("a.b").warning(
        "took %d ms", 7, extra={"request_id": "r1", "fields": {"model": "m", "worker": 2**62}}
    )

    line = orjson.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "WARNING",
        "logger": "a.b",
        "message": "took 7 ms",
        "request_id": "r1",
        "model": "m",
        "worker": 2**62,
    }


def test_a_text_line_has_id_and_fields_behind_the_message(log_to):
    stream = log_to("text")

    logging.getLogger("a.b").info("done", extra={"request_id": "r1", "fields": {"why": 'a "b" c', "n": 1}})

    assert stream.getvalue().split(" ", 1)[1] == 'INFO    a.b: done request_id=r1 why="a \\"b\\" c" n=1\n'


def test_a_newline_in_a_message_forges_no_second_line(log_to):
    stream = log_to("text")

    logging.getLogger("a").info("unknown model %s", "x\n2026-01-01T00:00:00.000Z INFO    a: all is well")

    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_written_with_its_traceback(log_to, style):
    stream = log_to(style)

    try:
        raise ValueError("broken: password=hunter22")
    except ValueError:
        logging.getLogger("a").exception("failed")

    assert "Traceback" in stream.getvalue()
    assert "hunter22" not in stream.getvalue()


def test_what_json_does_not_know_is_written_as_text(log_to):
    stream = log_to("json")

    logging.getLogger("a").info("x", extra={"fields": {"error": ValueError("odd"), "ids": {1}, 5: "n"}})

    line = orjson.loads(stream.getvalue())
    assert (line["error"], line["ids"], line["5"]) == ("odd", "{1}", "n")


def test_lines_below_the_level_are_not_written(log_to):
    stream = log_to("text", level="warning")

    logging.getLogger("a").info("quiet")

    assert stream.getvalue() == ""


def test_clients_that_log_every_call_are_quiet(log_to):
    stream = log_to("text")

    logging.getLogger("httpx").info("HTTP Request: GET http://w1/health")

    assert stream.getvalue() == ""


def test_configuring_again_replaces_what_was_there(log_to):
    former = log_to("text")
    stream = log_to("text")

    logging.getLogger("a").info("once")

    assert former.getvalue() == ""
    assert stream.getvalue().count("once") == 1


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match="log style must be text or json, not 'xml'"):
        configure_logging(io.StringIO(), style="xml")


SECRET = "s3cr3t-Va1ue_x"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: Basic {SECRET}==",
        f"authorization: {SECRET}",
        f"(b'authorization', b'Bearer {SECRET}')",
        f"(b'x-api-key', b'{SECRET}')",
        f'{{"authorization":"Bearer {SECRET}","a":1}}',
        f'{{"api_key": "{SECRET}"}}',
        f'{{\\"api_key\\": \\"{SECRET}\\"}}',
        f"X-API-Key={SECRET}&x=1",
        f"apikey: {SECRET}",
        f"access_token={SECRET}",
        f"client_secret={SECRET}",
        f"password = '{SECRET}'",
        f"cookie: {SECRET}",
        f"set-cookie: {SECRET}; Path=/",
        f"key sk-{SECRET} was refused",
        f"hf_{SECRET}",
        f"http://user:{SECRET}@worker:8000/v1",
        f"https://{SECRET}@worker/v1",
    ],
)
def test_secrets_are_taken_out(text):
    assert SECRET not in redacted(text)
    assert "[redacted]" in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "worker 7 at http://w1:8000 is ready",
        "request completed input_tokens=5 max_tokens=7 key=value",
        "mail a@b.c about http://w1:8000/health",
        "a bearer of bad news",
        "the keys differ: engine, version",
        '{"logger":"a","message":"basic checks passed"}',
    ],
)
def test_ordinary_lines_stay_as_they_are(text):
    assert redacted(text) == text


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (f"headers: Authorization: Bearer {SECRET}", {}),
        ("x", {"authorization": SECRET}),
        ("x", {"url": f"http://u:{SECRET}@h"}),
    ],
)
def test_no_secret_reaches_the_log_by_message_or_field(log_to, style, message, fields):
    stream = log_to(style, level="DEBUG")

    logging.getLogger("a").debug(message, extra={"fields": fields})

    assert SECRET not in stream.getvalue()
    assert "[redacted]" in stream.getvalue()
