"""``duologue serve`` as a user meets it: help, a file of settings, what goes wrong, and the way from start to SIGTERM."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import click
import pytest
from click.testing import CliRunner

from adapters.command_line.config_file import LIMITS, model_options, read_config, session_defaults
from adapters.command_line.main import COMMANDS, main
from core.session.config import SessionConfig


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_help_names_every_command_and_imports_none() -> None:
    code, text = run("--help")
    assert code == 0
    assert all(name in text for name in COMMANDS)
    script = "import sys, adapters.command_line.main as m; m.main(['--help'], standalone_mode=False)"
    script += "; sys.exit(any(name.startswith(('trio', 'numpy', 'sqlalchemy')) for name in sys.modules))"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, timeout=30)


def test_a_command_that_is_mistyped() -> None:
    code, text = run("tlak")
    assert code == 2
    assert "no such command 'tlak'; did you mean talk?" in text
    assert "No such command 'xyzzy'" in run("xyzzy")[1]


@pytest.mark.parametrize("words", [("sessions", "list"), ("sessions", "show", "x"), ("replay", "x")])
def test_a_store_in_memory_has_nothing_to_look_at(words: tuple[str, ...]) -> None:
    code, text = run(*words, "--store", "memory:")
    assert code == 2
    assert "a store in memory (memory:) ends with its server" in text


def test_help_of_serve_teaches() -> None:
    code, text = run("serve", "--help")
    assert code == 0
    for word in ("--host", "--port", "--store", "--model", "--drain-s", "[session]", "Examples:"):
        assert word in text


def test_a_file_of_settings(tmp_path: Path) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text(
        '[server]\nport = 9000\napi_keys = ["k"]\n[store]\nurl = "memory:"\n'
        '[model]\nname = "scripted"\naliases = ["a-*"]\noptions = { rtf = 0.5, transcript = "hi" }\n'
        '[session]\ninstructions = "Be kind."\n'
    )
    values = read_config(path)
    assert (values["port"], values["store"], values["model"], values["api_key"]) == (9000, "memory:", "scripted", ["k"])
    assert values["model_alias"] == ["a-*"]
    assert model_options(tuple(values["model_option"])) == {"rtf": 0.5, "transcript": "hi"}
    assert {config.instructions for config in session_defaults(values["session"]).values()} == {"Be kind."}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[servr]\n", "no section \\[servr\\]"),
        ("[server]\nprt = 1\n", "\\[server\\] has no 'prt'"),
        ("not toml", "is not TOML"),
        ("server = 5\n", "no section"),
        ("[server]\nprot = 1\n", "did you mean port\\?"),
        ("session = 5\n", "session must be a table"),
        ('[model]\noptions = "x"\n', "\\[model\\] options must be a table"),
        ('[server]\napi_keys = "k"\n', "\\[server\\] api_keys must be a list"),
        ("[server]\napi_keys = [1]\n", "api_keys must be a list of texts"),
        ("[server]\nport = 9000.5\n", "port must be a whole number"),
        ("[server]\nport = true\n", "port must be a whole number"),
        ("[server]\nhost = 3\n", "host must be text"),
        ('[store]\npatience_s = "long"\n', "patience_s must be a number"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text(text)
    with pytest.raises(click.BadParameter, match=says):
        read_config(path)


def test_workers_in_a_file_of_settings(tmp_path: Path) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text('[workers]\ncount = 4\nray = "auto"\ngpus = 0.5\ncpus = 2\n')
    values = read_config(path)
    flags = {"workers": values["workers"], "ray": "auto", "worker_gpus": 0.5, "worker_cpus": 2}
    assert {name: values[name] for name in flags} == flags
    path.write_text('[workers]\ncount = "many"\n[server]\nport = 0\n[store]\nurl = "memory:"\n')
    code, text = run("serve", "--config", str(path), "--model", "scripted")
    assert code == 2
    assert "'many' is neither a number from 1 to 1024 nor auto" in text


def test_without_ray_a_cluster_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "gpu_runtime.cluster.ray_actors", raising=False)
    monkeypatch.delattr("gpu_runtime.cluster.ray_actors", raising=False)
    code, text = run("serve", "--port", "0", "--store", "memory:", "--model", "scripted", "--ray", "auto")
    assert code == 1
    assert f"{sys.executable} -m pip install 'duologue[ray]'" in text


def test_one_machine_needs_no_ray() -> None:
    script = "import sys, adapters.command_line.serve; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_session_that_cannot_be() -> None:
    with pytest.raises(click.ClickException, match=r"session\.voice"):
        session_defaults({"voice": 5})


def test_a_session_with_a_word_that_nobody_knows() -> None:
    with pytest.raises(click.ClickException, match=r"no 'instuctions'; did you mean instructions\?"):
        session_defaults({"instuctions": "Be kind."})


def test_the_limits_are_the_operators() -> None:
    made = session_defaults({"max_session_ms": 60_000, "instructions": "Be kind."})
    assert {(config.max_session_ms, config.instructions) for config in made.values()} == {(60_000, "Be kind.")}
    with pytest.raises(click.ClickException, match="max_session_ms must be a whole number"):
        session_defaults({"max_session_ms": "long"})
    with pytest.raises(click.ClickException, match="max_session_ms"):
        session_defaults({"max_session_ms": -1})


def test_every_limit_is_a_setting() -> None:
    assert {field.name for field in attrs.fields(SessionConfig)} >= LIMITS


def test_an_empty_key_is_no_key() -> None:
    code, text = run("serve", "--api-key", "")
    assert code == 2
    assert "API key is empty" in text


def test_model_options_are_json_or_text() -> None:
    assert model_options(("a=1", "b=true", "c=x y", 'd="1"', "e=")) == {
        "a": 1,
        "b": True,
        "c": "x y",
        "d": "1",
        "e": "",
    }
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        model_options(("nonsense",))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "nope"), "there is no model called 'nope'"),
        (("--model", "scripted", "--store", "mysql://x/y"), "no store speaks 'mysql'"),
        (("--model", "scripted", "--store", "sqlite:////sys/x"), "the server's user must be able to write to the file"),
        (("--model", "scripted", "--store", "postgresql://x@127.0.0.1:1/x"), "there is no connection to the database"),
        (("--model", "scripted", "--store", "sqlite:////nonexistent/a/x"), "there is no folder /nonexistent/a"),
        (("--model", "scripted", "--model-option", "load_error=no weights here"), "no weights here"),
        (("--tls-key", __file__), "--tls-key needs --tls-cert"),
        (("--tls-cert", __file__), "and its key must be PEM files"),
        (("--host", "0.0.0.0", "--model", "scripted"), "set a key with --api-key (or DUOLOGUE_API_KEYS)"),
        (("--host", "192.0.2.77", "--no-keys", "--model", "scripted"), "192.0.2.77 is no address of this machine"),
        (("--model", "scripted", "--model-option", "x"), "for --model-option"),
        (("--config", "/nonexistent.toml"), "cannot be read"),
        (("--workers", "auto"), "--workers auto counts the places of a Ray cluster: it needs --ray"),
        (("--workers", "0"), "neither a number from 1 to 1024 nor auto"),
        (("--worker-gpus", "1"), "--worker-gpus and --worker-cpus are for Ray: they need --ray"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(arguments: tuple[str, ...], says: str) -> None:
    store = () if "--store" in arguments else ("--store", "memory:")
    code, text = run("serve", "--port", "0", *store, *arguments)
    assert code in (1, 2)
    assert says in text


FILE = """
[server]
port = 0
host = "127.0.0.1"
[store]
url = "sqlite:///{folder}/log.sqlite3"
[model]
name = "scripted"
"""


@pytest.mark.parametrize(
    ("given", "instead", "says"),
    [
        ("port = 0", "port = 99999", "[server] port: 99999 is not in the range 0<=x<=65535"),
        ("port = 0", 'log_level = "loud"', "[server] log_level: 'loud' is not one of 'debug', 'info'"),
        ("port = 0", 'tls_cert = "/nonexistent.pem"', "[server] tls_cert: File '/nonexistent.pem' does not exist"),
        ("port = 0", f'tls_key = "{__file__}"', "[server] tls_key needs --tls-cert (in a file: tls_cert)"),
        ("port = 0", f'tls_cert = "{__file__}"', "[server] tls_cert: the certificate cannot be used"),
        ("port = 0", 'api_keys = [" "]', "[server] api_keys: an API key is empty"),
        ('"127.0.0.1"', '"0.0.0.0"', "[server] host 0.0.0.0 is open to other machines"),
        ("sqlite:///", "mysql:///", "no store speaks 'mysql': use sqlite, postgresql or memory:"),
        ("[store]", '[store]\ndurability = "none"', "[store] durability: 'none' is not one of 'full', 'normal'"),
        ('"scripted"', '"nope"', "[model] name: there is no model called 'nope'; installed models: cascade,"),
        ("[model]", "[workers]\ncount = 0\n[model]", "[workers] count: 0 is neither a number from 1 to 1024 nor auto"),
        ("[model]", "[workers]\ngpus = -1\n[model]", "[workers] gpus: -1.0 is not in the range x>=0"),
        (
            "[store]",
            '[session]\nvoice = "nonsense"\n[store]',
            "[session]: scripted has no voice 'nonsense'; it has tone",
        ),
        (
            "[store]",
            '[session]\nmodel = "nonsense"\n[store]',
            "[session]: There is no model 'nonsense' here; there is: s",
        ),
        (
            "[store]",
            "[session]\nmax_session_ms = 0\n[store]",
            "'session.max_session_ms' has a value that cannot be; it is",
        ),
        ("[store]", "[session]\nmax_session_ms = 0.5\n[store]", "[session] max_session_ms must be a whole number"),
        ("[store]", "[session]\nvioce = 1\n[store]", "[session] has no 'vioce'; did you mean voice?"),
        ("[store]", "[session]\nvoice = 1\n[store]", "'session.voice' is a string, not a number"),
    ],
)
def test_what_a_file_has_wrong_is_said_with_its_place_and_nothing_is_made(
    given: str, instead: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text(FILE.format(folder=tmp_path).replace(given, instead))
    code, text = run("serve", "--config", str(path))
    told = " ".join(text.replace("\n", " ").split())
    assert says in told
    assert str(path) in told
    assert code == 2
    assert [found.name for found in tmp_path.iterdir()] == ["duologue.toml"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--model", "nope"), 2),
        (("--model", "scripted", "--model-option", "load_error=no weights here"), 1),
        (("--model", "scripted", "--host", "192.0.2.77", "--no-keys"), 1),
    ],
    ids=["model", "weights", "host"],
)
def test_a_server_that_cannot_be_makes_no_store(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    given, text = run("serve", "--port", "0", "--store", f"sqlite:///{tmp_path}/log.sqlite3", *arguments)
    assert given == code, text
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_model_that_it_refuses_are_found_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text(FILE.format(folder=tmp_path) + 'options = { load_error = "no weights here" }\n')
    code, text = run("serve", "--config", str(path))
    assert code == 1
    assert f"no weights here (see {path}: [model] options)" in " ".join(text.split())


def test_a_store_that_is_some_other_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database " * 500)
    code, text = run("serve", "--port", "0", "--model", "scripted", "--store", f"sqlite:///{tmp_path}/notes.txt")
    assert code == 3
    assert "no SQLite database: name another with --store" in text


def test_a_port_that_is_taken_is_said_in_a_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = run("serve", "--port", port, "--store", "memory:", "--model", "scripted")
    assert code == 1
    assert f"port {port} is taken" in text


@contextmanager
def serving(
    *arguments: str,
    says: str = r"https?://localhost:(\d+)/",
    program: Sequence[str] = ("-m", "adapters.command_line.main"),
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own that has said so much, ready by default; and its port, if it said that."""
    command = [sys.executable, *program, "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                found = re.search(says, line)
                if found:
                    yield process, int(found[1]) if found.groups() else 0
                    break
            else:
                raise AssertionError(f"the server never said {says}")
        finally:
            process.kill()


@pytest.mark.realtime
def test_it_listens_to_the_network_with_a_key_and_lets_nobody_else_in() -> None:
    arguments = ("--model", "scripted", "--store", "memory:", "--host", "0.0.0.0", "--api-key", "sk-one")
    with serving(*arguments) as (_, port):
        url = f"http://127.0.0.1:{port}/v1/models"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=10)
        assert refused.value.code == 401
        refused.value.close()
        asked = urllib.request.Request(url, headers={"Authorization": "Bearer sk-one"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert answer.status == 200


@pytest.mark.realtime
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_serves_and_drains(ending: signal.Signals, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'log.sqlite3'}"
    with serving("--model", "scripted", "--store", store) as (process, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(ending)
        assert process.wait(timeout=20) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5)


@pytest.mark.realtime
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order_while_it_loads(ending: signal.Signals, tmp_path: Path) -> None:
    """Nobody waited for the signal: it ended the process where it stood, and the first process of a container not at all."""
    store = f"sqlite:///{tmp_path / 'log.sqlite3'}"
    arguments = ("--model", "scripted", "--model-option", "load_ms=600000", "--store", store)
    with serving(*arguments, says="loading scripted") as (process, _):
        process.send_signal(ending)
        assert process.wait(timeout=60) == 0


def test_the_variable_may_have_several_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_API_KEYS", "one two")
    serve = main.get_command(click.Context(main), "serve")
    assert serve is not None
    context = serve.make_context("serve", [])
    assert context.params["api_key"] == ("one", "two")
