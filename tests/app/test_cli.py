from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import main, parser
from app.config_problems import UsageError
from app.simulate import DEMO_MODEL, worker_options
from app.version import VERSION
from simulator.faults import Fault
from simulator.options import SglangOptions, TrtllmOptions, VllmOptions

CONFIG = """
models:
  - name: m
    path: {path}
    workers: [{{url: "http://127.0.0.1:1", engine: vllm}}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tandem.yaml"
    file.write_text(CONFIG.format(path=DEMO_MODEL))
    return file


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def simulated(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(["simulate", "--engine", "vllm", "--port", "0", *arguments])


# ---- help


@pytest.mark.parametrize("command", ["serve", "check", "simulate", "demo", "version"])
def test_help_names_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    assert f"\n    {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "taught"),
    [
        ("serve", "TANDEM_SERVER__PORT=9000"),
        ("check", "Exits 0 when all is right, else 1."),
        ("simulate", "--fault reset@token:5"),
        ("demo", "port of the gateway (default: 8000)"),
    ],
)
def test_a_commands_help_teaches_its_use(command: str, taught: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    assert taught in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["sevre"], ["serve"], ["check", "--conf", "x"], ["simulate", "--port", "1"]])
def test_a_wrong_command_line_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: tandem")


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)

    assert code == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


# ---- check


def test_check_of_a_right_configuration_is_code_0(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--config", str(config)])

    assert code == 0
    assert capsys.readouterr().out == f"{config}: all is right: 1 model, 1 worker\n"


def test_check_prints_every_problem_and_is_code_1(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("vllm", "vlm") + "sever: {}\n")

    code = main(["check", "--config", str(config)])

    assert code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{config}: 2 problems\n  models[0].workers[0].engine (line 5, column ")
    assert "\n  sever (line 6, column 8): unknown key; did you mean server?" in said


def test_check_loads_the_models_as_serve_would(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.format(path=tmp_path / "nowhere"))

    code = main(["check", "--config", str(config)])

    assert code == 1
    said = capsys.readouterr().err
    assert "models[0].path: " in said
    assert "nowhere" in said


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_missing_file_is_said_without_a_traceback(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([command, "--config", str(tmp_path / "none.yaml")])

    assert code == 1
    assert capsys.readouterr().err == f"{tmp_path / 'none.yaml'}: 1 problem\n  there is no such file\n"


# ---- ports


@pytest.mark.parametrize("command", ["serve", "demo", "simulate"])
def test_a_port_in_use_is_said_with_what_to_do(
    command: str, config: Path, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"serve": ["--config", str(config)], "demo": [], "simulate": ["--engine", "vllm"]}[command]

    code = main([command, *given, "--port", str(taken_port)])

    assert code == 1
    assert capsys.readouterr().err == (
        f"tandem: cannot listen on 127.0.0.1, port {taken_port}: it is in use. Stop what listens there, or give another"
        " with --port\n"
    )


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("203.0.113.1", 0, "this machine does not have that address"),
        ("no such host", 0, "Give an address of this machine"),
        ("127.0.0.1", 70000, "70000 is no port. Give one from 1 to 65535"),
    ],
)
def test_an_address_that_cannot_be_had_is_said(
    host: str, port: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["demo", "--host", host, "--port", str(port)])

    assert code == 1
    assert said in capsys.readouterr().err


def test_an_option_is_checked_like_the_key_it_overrides(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["serve", "--config", str(config), "--processes", "0"])

    assert code == 1
    assert "server.processes (--processes): should be a whole number from 1 to 256, but is 0" in capsys.readouterr().err


# ---- simulate


def test_simulate_needs_an_engine_and_a_port_only() -> None:
    options = worker_options(simulated())

    assert (options.engine, options.role, options.host, options.port) == ("vllm", "aggregated", "127.0.0.1", 0)
    assert (options.model, options.model_path) == ("demo_model", str(DEMO_MODEL))
    assert options.vllm == VllmOptions()


def test_simulate_maps_every_option() -> None:
    options = worker_options(
        simulated(
            *("--role", "decode", "--host", "::1", "--advertised-host", "peer", "--bootstrap-port", "9"),
            *("--model", "m", "--version", "0.31", "--blocks", "64", "--block-size", "8", "--context-length", "512"),
            *("--dp-size", "2", "--ttft-ms", "1", "--token-ms", "2", "--prefill-us", "3", "--jitter", "0.5"),
            *("--speed", "0", "--slots", "4", "--reply", "Hi", "--mean-length", "5", "--echo", "6", "--seed", "7"),
            *("--call-tools", "--fault", "reset@token:5", "--fault", "status=503@request*3"),
        )
    )

    assert (options.role, options.host, options.advertised_host, options.bootstrap_port) == ("decode", "::1", "peer", 9)
    assert (options.model, options.version, options.seed, options.reply) == ("m", "0.31", 7, "Hi")
    assert (options.blocks, options.block_size, options.context_length, options.dp_size) == (64, 8, 512, 2)
    assert (options.rule.mean_length, options.rule.echo, options.calls_tools) == (5.0, 6, True)
    pace = options.pace
    assert (pace.ttft_s, pace.decode_s, pace.prefill_s) == pytest.approx((0.001, 0.002, 0.000003))
    assert (pace.jitter, pace.speed, pace.slots) == (0.5, 0.0, 4)
    assert options.faults == (Fault.parse("reset@token:5"), Fault.parse("status=503@request*3"))


@pytest.mark.parametrize(
    ("engine", "given", "options"),
    [
        ("vllm", ["lease_s=3", "recompute=true"], VllmOptions(lease_s=3.0, recompute=True)),
        ("sglang", ["max_queued=4"], SglangOptions(max_queued=4)),
        ("trtllm", ["band=1.2", "transfer_timeout_s=none"], TrtllmOptions(band="1.2", transfer_timeout_s=None)),
    ],
)
def test_simulate_takes_an_engines_own_options(engine: str, given: list[str], options: object) -> None:
    found = worker_options(simulated("--engine", engine, *(word for text in given for word in ("--option", text))))

    assert getattr(found, engine) == options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fault", "explode"], "explode"),
        (["--fault", "reset@nowhen"], "unknown moment 'nowhen'"),
        (["--option", "leese_s=3"], "vllm has no 'leese_s'; did you mean lease_s?"),
        (["--option", "lease_s=x"], "--option lease_s=x: should be a number"),
        (["--option", "recompute=1"], "--option recompute=1: should be true or false"),
        (["--engine", "openai", "--option", "a=1"], "openai workers have no options of their own"),
        (["--context-length", "99999999"], "cannot hold 99999999 tokens"),
        (["--model-path", "nowhere"], "--model-path nowhere: "),
    ],
)
def test_simulate_says_what_is_wrong(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        worker_options(simulated(*arguments))
