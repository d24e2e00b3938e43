"""The OpenAPI document against the gateway: schemathesis asks what the document allows and what it does not.

Takes a minute, and schemathesis, which `make test-fuzz` installs beside the project: `FUZZ_BIN` is where its programs
are.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.conformance.table import BOTH, CALLS, IDS
from tests.stories.conftest import no_bug_logged
from tests.stories.house import House, solo

__all__ = ["no_bug_logged"]

BIN = os.environ.get("FUZZ_BIN")
EXAMPLES = os.environ.get("FUZZ_EXAMPLES", "100")
SEED = os.environ.get("FUZZ_SEED", "1")
MODEL = "solo-vllm"
REQUESTS = {"chat": "ChatCompletionRequest", "completions": "CompletionRequest"}
VALIDATING = """
import json, sys, jsonschema_rs
document, bodies = json.load(sys.stdin)
for name, body in bodies:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema_rs.Draft202012Validator(schema).validate(body)
"""
"""A program: every body is valid by the document's schema of this name."""

pytestmark = pytest.mark.skipif(BIN is None, reason="schemathesis is not there: make test-fuzz installs it")


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with House([solo("vllm")], logging={"level": "error"}) as house:
        yield house


def test_every_request_of_the_table_is_one_of_the_documents(house: House) -> None:
    document = house.http.get("/openapi.json").json()
    bodies = [(REQUESTS[row.route], {"model": MODEL, **row.fields}) for row in (*BOTH, *IDS, *CALLS)]

    ran = subprocess.run(
        [f"{BIN}/python", "-c", VALIDATING], input=orjson.dumps([document, bodies]), capture_output=True, check=False
    )

    assert (ran.returncode, ran.stderr.decode()[-2000:]) == (0, "")


def test_every_answer_is_as_the_document_says(house: House, tmp_path: Path) -> None:
    """What several fields together forbid is not in a schema, so what it allows may be refused."""
    document = _of_one_model(house.http.get("/openapi.json").json())
    (tmp_path / "openapi.json").write_bytes(orjson.dumps(document))
    options = ["--url", house.base_url, "--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", SEED]
    unmeant = ["--exclude-checks", "positive_data_acceptance", "--request-timeout", "20", "--no-color"]

    ran = subprocess.run(
        [f"{BIN}/st", "run", "openapi.json", *options, *unmeant],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-8000:]
    house.rest(5)
    assert house.http.get("/health").json()["status"] == "healthy"


def _of_one_model(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a gateway that serves this model only: others are not found, whatever else is asked of them."""
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            schema["properties"]["model"] = {"enum": [MODEL] if "model" in schema["required"] else [MODEL, None]}
    return document
