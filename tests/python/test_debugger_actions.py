# SPDX-License-Identifier: Apache-2.0
"""What rules do when they have found something."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from typing import Any

import farandole
import pytest
from farandole.debugger import SMS, ActionList, Email, Hook, Log, StopTraining, Webhook, rules

from debugger_training import Net, batches, found_by, seeded, train


class Receiver(BaseHTTPRequestHandler):
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.bodies.append(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


def vanishing(path: Path, action: Any) -> farandole.debugger.Rule:
    """A rule that finds fault with four gradients in each of two steps."""
    trial = train(path, seeded(Net), batches(2), include_collections=["gradients"])
    rule = rules.VanishingGradient(trial, threshold=1e9, actions=action)
    assert len(found_by(rule)) == 8
    return rule


def test_a_webhook_gets_each_step_with_its_findings(tmp_path: Path) -> None:
    Receiver.bodies = []
    server = TCPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    vanishing(tmp_path / "run", Webhook(f"http://127.0.0.1:{server.server_address[1]}/x"))
    server.shutdown()
    thread.join()
    server.server_close()
    assert [body["step"] for body in Receiver.bodies] == [0, 1]
    body = Receiver.bodies[0]
    assert (body["rule"], body["run"]) == ("VanishingGradient", "run")
    assert len(body["findings"]) == 4
    assert body["findings"][0]["tensor"] == "gradient/Net_first.bias"
    assert body["text"].startswith(
        "VanishingGradient: step 0: 'gradient/Net_first.bias' of worker_0"
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "no url", "http://"])
def test_a_webhook_that_fails_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="farandole"):
        vanishing(tmp_path, Webhook(url, timeout_s=2.0))
    assert "the webhook of VanishingGradient was not reached" in caplog.text


def test_stop_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="farandole"):
        vanishing(tmp_path / "run", ActionList(StopTraining("ru"), Log()))
    assert len(caplog.records) == 8
    assert "VanishingGradient in 'run': step 1: 'gradient/Net_" in caplog.text
    stop = tmp_path / "run" / "stop"
    assert stop.read_text().startswith("VanishingGradient: step 1: 'gradient/Net_first.bias'")
    again = Hook(tmp_path / "run")
    again.save_scalar("x", 1)
    assert not stop.exists()  # the next training is not stopped by it
    assert again.stop_file == stop
    again.close()


def test_a_training_of_another_name_is_not_stopped(tmp_path: Path) -> None:
    vanishing(tmp_path / "run", [StopTraining("other")])
    assert not (tmp_path / "run" / "stop").exists()


def test_messages_point_to_the_webhook() -> None:
    for make in (lambda: Email("me@example.org"), lambda: SMS("+15550100")):
        with pytest.raises(farandole.NotSupported, match="use Webhook"):
            make()


def test_answers_and_addresses_of_a_webhook_may_be_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Rude(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(9999)
            self.request.sendall(b"nothing of HTTP\r\n\r\n")

    with TCPServer(("127.0.0.1", 0), Rude) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        vanishing(tmp_path / "a", Webhook(f"http://127.0.0.1:{server.server_address[1]}/"))
        server.shutdown()
        thread.join()
    vanishing(tmp_path / "b", Webhook("http://no host/"))
    assert caplog.text.count("the webhook of VanishingGradient was not reached") == 4


def test_a_run_whose_folder_is_gone_is_not_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial = train(tmp_path / "run", seeded(Net), batches(1), include_collections=["gradients"])
    shutil.rmtree(tmp_path / "run")
    StopTraining().invoke(trial, "Mine", [])
    assert "Mine could not stop 'run'" in caplog.text
