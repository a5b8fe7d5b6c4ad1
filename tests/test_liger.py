"""LigerGEGLUMLP is loaded through ``kernels`` from the first source having it, quickly without a network."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fixtures import liger

ROOT = Path(__file__).parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOAD = """
import json, kernelperf
from fixtures import liger
try:
    kernel = liger.load()
except kernelperf.Unavailable as error:
    print(json.dumps({"unavailable": str(error)}))
else:
    module = kernel.geglu(768, 3072)
    shapes = {name: list(weight.shape) for name, weight in module.named_parameters()}
    print(json.dumps({"class": type(module).__name__, "shapes": shapes, **kernel.about}))
"""


def load(tmp_path, **environment):
    """Load it in a fresh process, with a cache of its own and no network but what is asked for."""
    settings = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": "http://127.0.0.1:9", **environment}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"LOCAL_KERNELS", "KERNELS_CACHE"} and not name.lower().endswith("_proxy")
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOAD],
        cwd=ROOT,
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def http_404():
    """A Hub that answers, and has nothing."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def a_repository(at: Path) -> Path:
    return Path(shutil.copytree(liger.LOCAL_REPOSITORY, at))


def test_without_the_hub_the_local_repository_is_loaded_through_kernels(tmp_path):
    loaded = load(tmp_path)
    assert loaded == {
        "class": "LigerGEGLUMLP",
        "shapes": {
            "gate_proj.weight": [3072, 768],
            "up_proj.weight": [3072, 768],
            "down_proj.weight": [768, 3072],
        },
        "liger_source": "local",
        "liger_revision": loaded["liger_revision"],
    }
    assert loaded["liger_revision"].startswith("liger-kernel 0.")


def test_local_kernels_comes_first(tmp_path):
    repository = a_repository(tmp_path / "mine")
    loaded = load(tmp_path, LOCAL_KERNELS=f"{liger.REPOSITORY}={repository}")
    assert (loaded["liger_source"], loaded["liger_revision"]) == (
        "LOCAL_KERNELS",
        "liger-kernels version 1",
    )


def test_without_the_hub_its_cache_comes_before_the_local_repository(tmp_path):
    cached = tmp_path / "hf" / "hub" / "kernels--kernels-community--liger-kernels"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "v1").write_text(COMMIT)
    a_repository(cached / "snapshots" / COMMIT)
    loaded = load(tmp_path)
    assert (loaded["liger_source"], loaded["liger_revision"]) == ("cache", COMMIT)


def test_a_wrong_local_kernels_is_named_not_passed_over(tmp_path):
    loaded = load(tmp_path, LOCAL_KERNELS=f"{liger.REPOSITORY}={tmp_path / 'nowhere'}")
    assert "FileNotFoundError: Cannot find a build variant" in loaded["unavailable"]
    assert str(tmp_path / "nowhere") in loaded["unavailable"]
    assert "\n" not in loaded["unavailable"]


def test_a_broken_cached_kernel_is_named_not_passed_over(tmp_path):
    cached = tmp_path / "hf" / "hub" / "kernels--kernels-community--liger-kernels"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "v1").write_text(COMMIT)
    repository = a_repository(cached / "snapshots" / COMMIT)
    (repository / "build" / "torch-universal" / "layers.py").write_text(
        "import liger_kernel_of_another_age\n"
    )
    assert "No module named 'liger_kernel_of_another_age'" in load(tmp_path)["unavailable"]


def test_an_answering_hub_that_refuses_is_named_not_passed_over(tmp_path, http_404):
    loaded = load(tmp_path, HF_ENDPOINT=http_404)
    assert "could not verify publisher trust status" in loaded["unavailable"]


def test_a_silent_hub_costs_two_seconds_at_most(monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        port = silent.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]  # fill the backlog: the next connection gets no answer
        for each in fill:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        monkeypatch.setattr(liger, "hub_address", lambda: ("127.0.0.1", port))
        start_s = time.monotonic()
        assert not liger.hub_is_reachable(within_s=0.3)
        assert time.monotonic() - start_s < 1
        for each in fill:
            each.close()


def test_a_listening_hub_is_reachable(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert liger.hub_is_reachable()
    assert not liger.hub_is_reachable()


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, ("huggingface.co", 443)),
        ({"HF_ENDPOINT": "https://mirror.example"}, ("mirror.example", 443)),
        ({"HF_ENDPOINT": "http://mirror.example:8080/hub"}, ("mirror.example", 8080)),
        ({"https_proxy": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "huggingface.co"}, ("huggingface.co", 443)),
    ],
)
def test_the_hub_is_asked_for_where_its_client_would_connect(environment, address, monkeypatch):
    for name in (
        "HF_ENDPOINT",
        "https_proxy",
        "HTTPS_PROXY",
        "no_proxy",
        "NO_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert liger.hub_address() == address


@pytest.mark.parametrize(
    ("local_kernels", "named"),
    [
        ("", False),
        ("kernels-community/activation=/a", False),
        ("kernels-community/activation=/a:kernels-community/liger-kernels=/b", True),
        ("kernels-community/liger-kernels-fork=/b", False),
    ],
)
def test_local_kernels_is_read_as_the_library_reads_it(local_kernels, named):
    assert liger.names_repository(local_kernels) is named


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_offline_by_request_spares_the_question(value, offline, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert liger.is_offline_by_request() is offline


def raised(*errors: Exception) -> Exception:
    """Raise each error while handling the one before, as ``kernels`` does, and return the last."""
    first, *later = errors
    for error in later:
        error.__context__ = first
        first = error
    return first


def test_a_connection_error_is_recognized_behind_what_it_was_turned_into():
    refused = raised(ConnectionRefusedError(111, "refused"), ValueError("could not verify publisher trust"))
    assert liger.is_connection_error(refused)
    assert not liger.is_connection_error(raised(FileNotFoundError("no build variant")))
    assert not liger.is_connection_error(raised(KeyError("x"), ValueError("Version 1 not found")))


def test_the_local_repository_is_one_that_git_keeps():
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    metadata = liger.LOCAL_REPOSITORY / "build" / "torch-universal" / "metadata.json"
    ignored = subprocess.run(["git", "check-ignore", "-q", str(metadata)], cwd=ROOT, check=False).returncode
    assert ignored == 1
