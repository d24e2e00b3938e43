"""What no single value of a configuration shows: names given twice, halves of a pair missing, engines that do not mix.

Works on documents that are wrong in other places too, so that all problems come at once: what could not be read is left
out, and a check that would need it is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.config_problems import Place, Problem, path_of, suggestion
from engines import adapter_for
from engines.base import AttemptIds, EngineAdapter
from protocols.worker import Engine, Role, Worker
from routers.modes import RouterMode, available_modes

ReadWorker = Callable[[object, str | None], Worker | None]
"""A worker from its mapping and its model's served_name, or None when the mapping is wrong."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A model as far as it could be read. `workers` are (place, worker); `complete` says that all of them could be."""

    place: Place
    values: Mapping[str, Any]
    workers: tuple[tuple[Place, Worker], ...]
    complete: bool

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) and value else None

    def in_role(self, role: Role) -> list[tuple[Place, Worker]]:
        return [(place, worker) for place, worker in self.workers if worker.role is role]


def inconsistencies(values: Mapping[str, Any], read_worker: ReadWorker) -> list[Problem]:
    """Every problem between values that are right each for itself."""
    drafts = list(_drafts(values, read_worker))
    problems = [*_shared_port(values), *_names_given_twice(drafts), *_workers_given_twice(drafts)]
    for draft in drafts:
        problems += _router(draft)
        for place, worker in draft.workers:
            problems += _keys_of_other_engines(place, worker, draft)
        if draft.complete and draft.workers:
            problems += _mix(draft)
            problems += _path(draft)
            problems += _parsers(draft)
            problems += _pairs(draft)
            problems += _embedding(draft)
    return problems


def _drafts(values: Mapping[str, Any], read_worker: ReadWorker) -> Iterator[_Draft]:
    models = values.get("models")
    for index, model in enumerate(models if isinstance(models, list) else ()):
        if not isinstance(model, Mapping):
            continue
        place: Place = ("models", index)
        served_name = model.get("served_name")
        listed = model.get("workers")
        listed = listed if isinstance(listed, list) else []
        found = [
            (i, read_worker(item, served_name if isinstance(served_name, str) else None))
            for i, item in enumerate(listed)
        ]
        workers = tuple(((*place, "workers", i), worker) for i, worker in found if worker is not None)
        yield _Draft(place, model, workers, len(workers) == len(listed))


def _shared_port(values: Mapping[str, Any]) -> Iterator[Problem]:
    server = values.get("server")
    if isinstance(server, Mapping) and server.get("port") == 0 and server.get("processes", 1) != 1:
        yield Problem(("server", "port"), "should be a port above 0: several processes cannot share a free one")


def _names_given_twice(drafts: list[_Draft]) -> Iterator[Problem]:
    taken: dict[str, Place] = {}
    for draft in drafts:
        aliases = draft.values.get("aliases")
        aliases = aliases if isinstance(aliases, list) else []
        named = [((*draft.place, "name"), draft.values.get("name"))]
        named += [((*draft.place, "aliases", i), alias) for i, alias in enumerate(aliases)]
        for place, name in named:
            if not isinstance(name, str):
                continue
            if name in taken:
                yield Problem(
                    place, f"{name!r} is already given at {path_of(taken[name])}; names and aliases are unique"
                )
            taken.setdefault(name, place)


def _workers_given_twice(drafts: list[_Draft]) -> Iterator[Problem]:
    ids: dict[int, tuple[Place, Worker]] = {}
    for draft in drafts:
        urls: dict[str, Place] = {}
        for place, worker in draft.workers:
            if worker.url in urls:
                yield Problem((*place, "url"), f"this worker is already given at {path_of(urls[worker.url])}")
                continue
            urls[worker.url] = place
            if worker.id in ids:
                where, other = ids[worker.id]
                why = "serves another model" if other.url == worker.url else "has the same id"
                yield Problem((*place, "id"), f"{path_of(where)} {why}; give this one an id of its own")
            ids.setdefault(worker.id, (place, worker))


def _router(draft: _Draft) -> Iterator[Problem]:
    router = draft.values.get("router")
    name = router.get("mode") if isinstance(router, Mapping) else None
    if not isinstance(name, str) or not name:
        return
    available = [mode.value for mode in available_modes()]
    try:
        fits = RouterMode(name) in available_modes()
    except ValueError:
        fits = False
    if not fits:
        text = f"should be one of {', '.join(available)}, but is {name!r}{suggestion(name, available)}"
        yield Problem((*draft.place, "router", "mode"), text)


def _keys_of_other_engines(place: Place, worker: Worker, draft: _Draft) -> Iterator[Problem]:
    """Keys that this worker's engine and role never read: set by mistake, or on the wrong worker."""
    token_prefill = worker.role is Role.PREFILL and worker.engine is not Engine.OPENAI
    if token_prefill and _adapter(worker, draft).bootstrap(_ANY_IDS, None) is not None:
        return
    for key in ("bootstrap_host", "bootstrap_port"):
        if getattr(worker, key) is not None:
            yield Problem((*place, key), "is only for sglang prefill workers")


def _mix(draft: _Draft) -> Iterator[Problem]:
    engines = {worker.engine for _, worker in draft.workers}
    if Engine.OPENAI not in engines:
        return
    if len(engines) > 1:
        text = "openai workers do not mix with other engines in one model; make two models of it"
        yield Problem((*draft.place, "workers"), text)
    for place, worker in draft.workers:
        if worker.engine is Engine.OPENAI and worker.role is not Role.AGGREGATED:
            yield Problem((*place, "role"), "should be aggregated: an openai worker takes whole requests")


def _path(draft: _Draft) -> Iterator[Problem]:
    if draft.text("path") is None and any(worker.engine is not Engine.OPENAI for _, worker in draft.workers):
        text = "is missing. The directory of the model's tokenizer: only models on openai workers do without"
        yield Problem((*draft.place, "path"), text)


def _parsers(draft: _Draft) -> Iterator[Problem]:
    if all(worker.engine is Engine.OPENAI for _, worker in draft.workers):
        for key in ("tool_call_parser", "reasoning_parser"):
            if key in draft.values:
                text = "is not for openai workers: their answers pass as they are"
                yield Problem((*draft.place, key), text)


def _pairs(draft: _Draft) -> Iterator[Problem]:
    prefill = [found for found in draft.in_role(Role.PREFILL) if found[1].engine is not Engine.OPENAI]
    decode = [found for found in draft.in_role(Role.DECODE) if found[1].engine is not Engine.OPENAI]
    for place, worker in prefill:
        if not any(_may_pair(worker, other) for _, other in decode):
            text = f"no decode worker of this model can take over from it ({_pairing(worker)}); add one"
            yield Problem((*place, "role"), text)
    for place, worker in decode:
        adapter = _adapter(worker, draft)
        local = (draft.text("prefill_policy") or adapter.default_prefill_policy) == "local"
        if local and not adapter.plain(Role.DECODE):
            text = f"local is not possible: {worker.engine.value} decode workers serve no request without a prefill"
            yield Problem((*draft.place, "prefill_policy"), text)
        elif not local and not any(_may_pair(other, worker) for _, other in prefill):
            text = f"no prefill worker of this model can hand over to it ({_pairing(worker)}); add one"
            if adapter.plain(Role.DECODE):
                text += ", or set prefill_policy: local"
            yield Problem((*place, "role"), text)


def _embedding(draft: _Draft) -> Iterator[Problem]:
    if draft.text("kind") != "embed":
        return
    for place, worker in draft.workers:
        if worker.role is not Role.AGGREGATED:
            yield Problem((*place, "role"), "should be aggregated: embeddings are not made in two halves")
        elif worker.engine is not Engine.OPENAI and not _adapter(worker, draft).embeds(parts=False):
            yield Problem((*place, "engine"), f"{worker.engine.value} workers make no embeddings")


def _may_pair(one: Worker, other: Worker) -> bool:
    """Whether nothing that is configured forbids a hand-off; an unknown version forbids nothing yet."""
    versions = {one.version, other.version} - {None}
    return one.engine is other.engine and one.connector == other.connector and len(versions) < 2


def _pairing(worker: Worker) -> str:
    return " ".join(filter(None, (worker.engine.value, worker.version)))


def _adapter(worker: Worker, draft: _Draft) -> EngineAdapter:
    return adapter_for(worker, draft.text("name") or "")


_ANY_IDS = AttemptIds(name="0" * 32, number=2**40)
