"""The signing secret from the command line, on a real node whose calls are checked."""

import asyncio

from standardwebhooks import Webhook

from cli.conftest import Run
from executor.targets import Received, answer_everything, serving
from nodes import NodeProcess


async def test_a_running_node_signs_with_both_secrets_after_a_rotation(duetime: Run, node: NodeProcess) -> None:
    async def call(*words: str) -> str:
        said = await asyncio.to_thread(duetime, *words)
        assert said.code == 0, said.err
        return said.out.strip()

    async with serving(answer_everything) as target:

        async def next_call() -> Received:
            await call("submit", "a", '{"n": 1}', "--target", target.url, "--wait", "20")
            return target.received[-1]

        former = await call("keys", "signing-secret")
        Webhook(former).verify((received := await next_call()).body, received.headers)

        newest = await call("keys", "rotate-signing-secret", "--overlap", "10m")
        async with asyncio.timeout(20):
            while " " not in (received := await next_call()).headers["webhook-signature"]:
                pass

        for secret in (former, newest):
            Webhook(secret).verify(received.body, received.headers)


def test_a_rotation_prints_the_secret_and_what_it_means(duetime: Run) -> None:
    duetime("keys", "rotate-signing-secret", "--overlap", "0")
    first = duetime("keys", "rotate-signing-secret")
    second = duetime("keys", "rotate-signing-secret")
    shown = duetime("keys", "signing-secret")

    assert "as well" in first.err
    assert "does not sign any more" not in first.err
    assert "does not sign any more" in second.err
    assert first.out != second.out == shown.out
    assert "as well" in shown.err
    ended = duetime("keys", "rotate-signing-secret", "--overlap", "0", "--json")
    assert ended.json["former_until"] is None
    assert len(ended.json["notes"]) == 1


def test_a_wrong_overlap_is_said(duetime: Run) -> None:
    for overlap, said in (("soon", "is not a duration"), ("31d", "overlap")):
        answer = duetime("keys", "rotate-signing-secret", "--overlap", overlap)
        assert (answer.code, said in answer.err) == (2, True)
