"""How a request came to its workers, for headers, logs and the dashboard.

Worker ids have 63 bits, more than a JavaScript number holds exactly, so in JSON they are strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from protocols.worker import Leg
from routers.base import Choice

EXPLAIN_HEADER = b"x-tandem-explain"

_WORKER = {Leg.PREFILL: b"x-tandem-prefill-worker", Leg.DECODE: b"x-tandem-decode-worker"}
_DP_RANK = {Leg.PREFILL: b"x-tandem-prefill-dp-rank", Leg.DECODE: b"x-tandem-decode-dp-rank"}


def explanation_wanted(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Does the request say `x-tandem-explain: 1` (or true)? `headers` are ASGI's: lower-case names, raw values."""
    return any(name == EXPLAIN_HEADER and value.strip().lower() in (b"1", b"true") for name, value in headers)


def explanation(choice: Choice) -> dict[str, Any]:
    """One choice as plain JSON values.

    `removed`: per filter the workers it removed; `scores`: per scorer each eligible worker's score from 0 to 1;
    `in_flight`: this gateway's requests on each eligible worker at the time of asking.
    """
    return {
        "leg": choice.query.leg.value,
        "profile": choice.profile.name,
        "picker": choice.profile.picker.name,
        "worker": str(choice.worker.id),
        "dp_rank": choice.dp_rank,
        "removed": {name: [str(worker_id) for worker_id in ids] for name, ids in choice.casualties.items()},
        "in_flight": {str(candidate.id): candidate.in_flight for candidate in choice.eligible},
        "scores": {
            name: {str(worker_id): score for worker_id, score in scores.items()}
            for name, scores in choice.scores.items()
        },
    }


def explanation_headers(choices: Sequence[Choice]) -> list[tuple[bytes, bytes]]:
    """Response headers naming the workers that serve, and their ranks where they were asked for.

    `choices` in the order they were made: after a migration the last one of each leg counts.
    """
    headers: dict[bytes, bytes] = {}
    for choice in choices:
        leg = choice.query.leg
        headers[_WORKER[leg]] = b"%d" % choice.worker.id
        if choice.dp_rank is not None:
            headers[_DP_RANK[leg]] = b"%d" % choice.dp_rank
    return list(headers.items())
