# SPDX-License-Identifier: Apache-2.0
"""What happens when a rule has found something."""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.logs import LOGGER

STOP_FILE = "stop"
"""In the folder of a run: what StopTraining makes."""


class Run(Protocol):
    """What rules look at: a trial of the debugger, or a profile."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def path(self) -> Path:
        """The folder with its files."""


class Found(Protocol):
    """What a rule has found; as text it is a sentence."""

    @property
    def step(self) -> int | None:
        """Where it was found, if it is of one step."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""


class Action(Protocol):
    """Something to do once a rule has found something."""

    def invoke(self, run: Run, rule_name: str, findings: Sequence[Found]) -> None:
        """Do it."""


class Log:
    """Writes a warning to the logger "farandole"."""

    def invoke(self, run: Run, rule_name: str, findings: Sequence[Found]) -> None:
        """Write one line for each finding."""
        for finding in findings:
            LOGGER.warning("%s in '%s': %s", rule_name, run.name, finding)


class StopTraining:
    """Asks the training to stop, by the file ``stop`` in the folder of the run.

    The training ends itself after the same step on all ranks, with a checkpoint, if it looks::

        preemption = farandole.CheckpointOnSignal(file=hook.stop_file)  # folder + "/stop"
    """

    def __init__(self, training_job_prefix: str = "") -> None:
        """Make it; only runs whose name begins with ``training_job_prefix`` are stopped."""
        self._prefix = training_job_prefix

    def invoke(self, run: Run, rule_name: str, findings: Sequence[Found]) -> None:
        """Create the file; it has the findings."""
        if run.name.startswith(self._prefix):
            text = "".join(f"{rule_name}: {finding}\n" for finding in findings)
            try:
                (run.path / STOP_FILE).write_text(text)
            except OSError as error:
                LOGGER.warning("%s could not stop '%s': %s", rule_name, run.name, error)


class Webhook:
    """Sends a JSON object by HTTP POST: rule, run, path, step, text and findings.

    ``text`` is what chat services show. A failure is logged, and the rule goes on.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        self._url, self._timeout_s = url, timeout_s

    def invoke(self, run: Run, rule_name: str, findings: Sequence[Found]) -> None:
        """Send it."""
        body = {
            "rule": rule_name,
            "run": run.name,
            "path": str(run.path),
            "step": findings[0].step if findings else None,
            "text": "\n".join(f"{rule_name}: {finding}" for finding in findings),
            "findings": [finding.to_json() for finding in findings],
        }
        try:
            request = urllib.request.Request(
                self._url, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=self._timeout_s):
                pass
        except (OSError, ValueError, http.client.HTTPException) as error:
            LOGGER.warning("the webhook of %s was not reached: %s", rule_name, error)


class ActionList:
    """Several actions, one after the other."""

    def __init__(self, *actions: Action) -> None:
        self._actions = actions

    def invoke(self, run: Run, rule_name: str, findings: Sequence[Found]) -> None:
        """Do all of them."""
        for action in self._actions:
            action.invoke(run, rule_name, findings)


class Email:
    """Not supported; see Webhook."""

    def __init__(self, email_address: str) -> None:
        """Raise NotSupported."""
        raise _no_messages("Email", email_address)


class SMS:
    """Not supported; see Webhook."""

    def __init__(self, phone_number: str) -> None:
        """Raise NotSupported."""
        raise _no_messages("SMS", phone_number)


def _no_messages(action: str, receiver: str) -> NotSupported:
    return NotSupported(
        sentences(
            "debugger-messages",
            f"the action {action}({receiver!r}) was made.",
            "Farandole has no service that sends messages.",
            "use Webhook(url) with the address of a service that sends them.",
        )
    )


def actions_of_json(text: str) -> list[Action]:
    """The actions that SageMaker's JSON names; none if it is empty.

    Args:
        text: An object or a list of them: ``{"name": "stoptraining", "training_job_prefix": ""}``,
            or "email" or "sms" with an "endpoint".

    Raises:
        InvalidArgument: it is something else.
        NotSupported: an email or sms.
    """
    if not text.strip():
        return []
    try:
        found = json.loads(text)
        return [_action_of(each) for each in (found if isinstance(found, list) else [found])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            sentences(
                "rule-actions",
                f"a rule got the actions {text!r}.",
                f"{type(error).__name__}: {error}.",
                'pass JSON as [{"name": "stoptraining", "training_job_prefix": ""}].',
            )
        ) from error


def _action_of(description: dict[str, str]) -> Action:
    name = description["name"].lower()
    if name == "stoptraining":
        return StopTraining(description.get("training_job_prefix", ""))
    if name in ("email", "sms"):
        raise _no_messages(name, description.get("endpoint", ""))
    raise KeyError(name)
