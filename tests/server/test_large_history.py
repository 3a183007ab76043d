"""Answers with all that a log holds: whoever asks for one holds up nobody else."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest

from tests.server.serving import serving

pytestmark = [pytest.mark.any_user, pytest.mark.timeout(900)]

# No text, so that it is also there in base64: an answer of 100 million bytes.
FLOOD_BYTES = 20_000_000
# What one step of the event loop may take of the processor. Made at once, such an answer takes seconds.
MOST_STEP_SECONDS = 0.1


class Steps:
    """Measures how much of the processor the event loop uses between two turns of a task of its own.

    Not how long that takes, which on a busy machine depends on others.
    """

    def __init__(self) -> None:
        self.most = 0.0

    async def measure(self) -> None:
        before = time.thread_time()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.thread_time()
            self.most = max(self.most, now - before)
            before = now


@pytest.mark.parametrize(
    "path", ["execution-logs", "command-executions", "command-executions/{execution}/logs"]
)
async def test_the_event_loop_stays_free_for_others(path: str) -> None:
    async with serving(engine="namespaces") as served:
        _, text = served.add_token(served.admin)
        async with served.client(text) as client:
            made = await client.call("POST", "/sandboxes", body={"template": "base"})
            base = f"/sandboxes/{made['id']}"
            body = {"command": f"head -c {FLOOD_BYTES} /dev/urandom", "wait": True}
            done = await client.call("POST", f"{base}/executions", body=body)
            while done["state"] != "ended":
                done = await client.call("GET", f"/executions/{done['id']}?wait=60")
        url = f"{served.url}{base}/{path.format(execution=done['id'])}?limit=1000"
        headers = {"Authorization": f"Bearer {text}"}

        def ask() -> httpx2.Response:
            # In a thread: taking it apart must not be counted.
            return httpx2.get(url, headers=headers, trust_env=False, timeout=600)

        steps = Steps()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(steps.measure)
            answer = await anyio.to_thread.run_sync(ask)
            tasks.cancel_scope.cancel()
        assert answer.status_code == 200
        assert len(answer.content) > 2 * FLOOD_BYTES
        assert steps.most < MOST_STEP_SECONDS
