"""The page that follows trainings: how a run stands, what the server answers and whom, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leadline import config as configuration
from leadline import machine
from leadline.config import Config
from leadline.report import now
from leadline.report.live import Followed, Server, open_server
from leadline.report.now import standing
from leadline.training.run import locked

EVIL = "<img src=x onerror=alert(1)>"


@contextmanager
def served(followed: Followed) -> Iterator[Server]:
    with open_server(followed, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    headers = {"Host": f"127.0.0.1:{server.server_address[1]}"} | headers
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 20 updates, a minute each, evaluated every 10; without its checkpoints."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_config(folder)
    rows: list[dict[str, float]] = []
    for update in range(1, 21):
        rows.append({"update": update, "loss": 5 - update / 10, "grad_norm": 1.0, "lr": 1e-3, "seconds": 60.0 * update})
        rows += [{"update": update, "valid_nll": 4 - update / 10}] if update % 10 == 0 else []
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_config(folder: Path, **train: Any) -> None:
    config = Config().set(train={"updates": 20} | train)
    (folder / "config.toml").write_text(configuration.to_toml(config), encoding="utf-8")


def keep(run: Path, lines: int, more: str = "", age: float = 0.0) -> None:
    path = run / "metrics.jsonl"
    kept = path.read_text().splitlines(keepends=True)[:lines]
    path.write_text("".join(kept) + more)
    os.utime(path, (time.time() - age,) * 2)


def test_how_a_finished_run_stands(run: Path) -> None:
    stands = standing(run, "run")
    assert stands.words == (
        "run: complete, update 20 of 20 (100%). Loss 3; validation 2 nats a token, at best 2 at update 20."
    )
    assert (stands.tone, stands.done) == ("good", 1.0)


def test_a_run_that_writes_is_training_and_one_that_is_silent_has_stopped(run: Path) -> None:
    keep(run, 5, '{"update": 6, "lo')
    stands = standing(run, "run")
    assert stands.words == "run: training, update 5 of 20 (25%), about 15 min of training left. Loss 4.5."
    assert stands.run is not None
    assert (stands.tone, stands.done, stands.run.ended) == ("plain", 0.25, "still training")
    keep(run, 5, age=120)
    assert "run: training," in standing(run, "run").words  # a line takes a minute
    keep(run, 5, age=600)
    stands = standing(run, "run")
    assert "stopped, update 5 of 20 (25%), nothing for 10 min; go on with leadline train --resume " in stands.words
    assert stands.tone == "warning"
    with locked(run):
        assert "run: training," in standing(run, "run").words


def test_a_lock_is_seen_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not machine.lock_is_held(path)
    with path.open("w") as file:
        assert not machine.lock_is_held(path)
        assert machine.lock(file, wait=False)
        assert machine.lock_is_held(path) == Path("/proc/locks").exists()
    assert not machine.lock_is_held(path)


def test_a_run_that_has_not_begun_is_waited_for(run: Path, tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'later'}" in standing(tmp_path / "later", "later").words
    (tmp_path / "new").mkdir()
    assert "is not a run: it has no config.toml" in standing(tmp_path / "new", "new").words
    with locked(tmp_path / "new"):
        assert standing(tmp_path / "new", "new").words == "new: preparing its data."
    keep(run, 0)
    assert "nothing is measured yet. Begin with leadline train --resume" in standing(run, "run").words
    with locked(run):
        assert standing(run, "run").words == "run: training begins; nothing is measured yet."


def test_a_run_that_diverged_and_one_without_hope(run: Path) -> None:
    keep(run, 5, '{"update": 6, "loss": null, "grad_norm": null}\n')
    stands = standing(run, "run")
    assert (stands.words[:29], stands.tone) == ("run: diverged at update 6. It", "bad")
    write_config(run, patience=2)
    keep(run, 5, "".join(f'{{"update": {5 + i}, "valid_nll": {2 + i}}}\n' for i in range(3)))
    assert "complete at update 7: no better in 2 evaluations" in standing(run, "run").words


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (7260, "2 h 1 min")])
def test_durations_in_words(seconds: float, words: str) -> None:
    assert now.duration(seconds) == words


def test_the_worst_gives_the_section_its_colour(run: Path, tmp_path: Path) -> None:
    both = [standing(run, "run"), standing(tmp_path / "gone", "gone")]
    assert now.section(both).tone == "warning"
    assert now.section(both).bars == [1.0, None]


def test_the_content_follows_the_folder(run: Path, tmp_path: Path) -> None:
    followed = Followed([run, tmp_path / EVIL])
    with served(followed) as server:
        status, headers, text = ask(server, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "connect-src 'self'" in text
        assert EVIL not in text
        status, headers, text = ask(server, "/content")
        content = json.loads(text)
        assert EVIL not in content["main"]
        assert "&lt;img src=x onerror=alert(1)&gt;: there is no folder" in content["main"]
        assert [chart["title"] for chart in content["charts"]][:2] == ["Loss", "Learning rate"]
        assert ask(server, "/content", If_None_Match=headers["ETag"])[0] == 304
        keep(run, 5, '{"update": 6, "lo')
        status, changed, text = ask(server, "/content", If_None_Match=headers["ETag"])
        assert (status, changed["ETag"] == headers["ETag"]) == (200, False)
        assert json.loads(text)["charts"][0]["series"][0]["x"] == [1, 2, 3, 4, 5]
        shutil.rmtree(run)
        content = json.loads(ask(server, "/content")[2])
        assert content["charts"] == []
        assert content["main"].count("there is no folder") == 2


def test_only_this_machine_only_these_paths_only_get(run: Path) -> None:
    with served(Followed([run])) as server:
        assert server.server_address[0] == "127.0.0.1"
        for path in (
            "/../run/config.toml",
            "/config.toml",
            "/content/",
            "/?x",
            urllib.parse.quote(str(run / "config.toml")),
            "http://a/",
        ):
            status, _, text = ask(server, path)
            assert (status, "updates" in text) == (404, False), path
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert ask(server, "/", Host=host)[0] == 403, host
        assert ask(server, "/", Host="localhost:9000")[0] == 200  # through an ssh tunnel
        for method in ("POST", "PUT", "HEAD", "DELETE", "OPTIONS"):
            assert ask(server, "/", method)[0] == 501, method


def test_a_taken_port_is_passed_over(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leadline.errors import UserError
    from leadline.report import live

    followed = Followed([run])
    with open_server(followed, 0) as first:
        port = first.server_address[1]
        with open_server(followed, port) as second:
            assert port < second.server_address[1] < port + 20
        monkeypatch.setattr(live, "PORTS_TRIED", 1)
        with pytest.raises(UserError, match="taken"):
            open_server(followed, port)


def test_what_the_command_refuses(run: Path, leadline: Callable[..., Any]) -> None:
    for options, says in (
        (["--live", "--out", "x.html"], "choose one"),
        (["--port", 1], "--port means nothing without --live"),
        (["--live", "--port", 70000], "65535"),
    ):
        answer = leadline("report", run, *options)
        assert (answer.code, answer.out) == (2, "")
        assert says in answer.err


def test_ctrl_c_ends_it_quietly(run: Path) -> None:
    command = [sys.executable, "-m", "leadline", "report", "--live", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "live at http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "leadline: stopped\n")


def test_alarms_are_shown_the_latest_first(run: Path) -> None:
    keep(run, 0, "".join(json.dumps({"update": i, "alarm": f"look at {EVIL}"}) + "\n" for i in range(1, 13)))
    main = json.loads(Followed([run]).content())["main"]
    assert "run, update 12: look at &lt;img" in main
    assert "And 2 before." in main
    assert main.index("update 12: look") < main.index("update 11: look")
    assert "update 2: look" not in main


def test_a_run_whose_name_is_not_utf8_is_shown(run: Path) -> None:
    odd = run.rename(os.fsdecode(os.fsencode(run.parent) + b"/\xff"))
    with served(Followed([odd])) as server:
        for path in ("/", "/content"):
            status, _, text = ask(server, path)
            assert status == 200
            assert "?: " in text
