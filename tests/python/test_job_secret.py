# SPDX-License-Identifier: Apache-2.0
"""The secret of a job: who makes it, and what is made of it."""

from __future__ import annotations

from farandole import job_secret


def test_codes_are_those_of_cpp() -> None:
    code = job_secret.code("secret", "purpose", b"ab", b"c")
    # tests/comm/sha256_test.cpp expects the same.
    assert code.hex() == "4a0ce04375c9fb38eff55775a8365526828787d39a25dec5ae9cb67a874ef864"
    assert job_secret.code("secret", "purpose", b"a", b"bc") != code


def test_a_job_has_one_secret() -> None:
    variables: dict[str, str] = {}
    job_secret.provide(variables)
    (made,) = variables.values()
    assert len(made) == 64
    job_secret.provide(variables)
    assert variables == {"FARANDOLE_JOB_SECRET": made}
    assert job_secret.make() != made


def test_records_are_those_of_their_key_and_secret() -> None:
    secret = job_secret.make()
    for text in ("", "a b\n", "ä"):
        record = job_secret.sealed(secret, "key", text)
        assert job_secret.unsealed(secret, "key", record) == text
        assert job_secret.unsealed(secret, "other", record) is None
        assert job_secret.unsealed(job_secret.make(), "key", record) is None
        assert job_secret.unsealed(secret, "key", record + "x") is None
        assert job_secret.unsealed(secret, "key", text) is None
