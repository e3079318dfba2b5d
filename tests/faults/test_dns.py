"""A tenant whose names nobody answers for, on a real node: everybody else is called as ever."""

import asyncio

import services
from duetime.sdk.client.async_client import AsyncClient
from executor.name_server import name_server
from executor.targets import answer_everything, serving
from nodes import NodeProcess


async def test_a_strangers_first_attempt_succeeds_while_150_names_of_another_tenant_are_never_answered() -> None:
    async with (
        name_server({"good.example": ["127.0.0.1"]}) as server,
        serving(answer_everything) as target,
    ):
        with services.private_folder() as folder:
            settings = folder / "duetime.toml"
            settings.write_text(f'dns_servers = ["127.0.0.1:{server.port}"]\nshutdown_seconds = 0\n')
            node = NodeProcess(folder / "node", arguments=("--config", str(settings)))
            # In a thread: the name server answers from this loop.
            await asyncio.to_thread(node.start)
            try:
                await attack(node, f"http://good.example:{target.port}/")
            finally:
                await asyncio.to_thread(node.stop)

        asked = {name for name in server.names() if name.startswith("silent")}
    assert len(target.received) == 3
    assert len(asked) >= 16


async def attack(node: NodeProcess, url: str) -> None:
    async with AsyncClient(node.url, node.key) as attacker:
        await attacker.put_tenant("quiet")
        silent = [{"type": "a", "target": {"url": f"http://silent{number}.example/"}} for number in range(150)]
        assert (await attacker.submit_many(silent)).accepted == 150
        async with AsyncClient(node.url, node.key, tenant="quiet") as quiet:
            for _ in range(3):
                task = await quiet.submit("a", target=url, retry={"max_attempts": 1})
                done = await quiet.wait(task.id, timeout=20)
                assert (done.state, [each.outcome for each in done.attempts]) == ("succeeded", ["succeeded"])
