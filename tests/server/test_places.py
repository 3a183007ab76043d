"""Places for sandboxes: who has taken all of his own is told so; who finds those of the node taken is to try again."""

from __future__ import annotations

import anyio
import pytest

from atoll import AsyncSandbox
from atoll.errors import LimitExceeded, Unavailable
from tests.server.serving import Served, serving

pytestmark = pytest.mark.any_user


async def test_a_full_node_is_worth_another_try_and_a_used_up_share_is_not() -> None:
    async with serving(quotas={"most_sandboxes": 2, "most_per_owner": 1}) as served:
        tokens = [served.add_token(served.add_user(name))[1] for name in ("ada", "bob", "eve")]
        answers = []
        for token in (*tokens, tokens[0]):
            async with served.browser(token) as browser:
                answers.append(await browser.post("/sandboxes", json={"template": "base"}))
        *made, full, share = answers
        assert [each.status_code for each in made] == [200, 200]
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        problem = full.json()
        assert (problem["code"], problem["retryable"]) == ("unavailable", True)
        assert problem["details"] == {"limit": 2}
        assert (share.status_code, share.json()["retryable"]) == (429, False)
        assert "retry-after" not in share.headers
        with pytest.raises(LimitExceeded, match="destroy one first"):
            await AsyncSandbox.create("base", url=served.url, token=tokens[0])
        with pytest.raises(Unavailable, match="try again"):
            await AsyncSandbox.create("base", url=served.url, token=tokens[2])


async def test_the_sdk_gets_a_place_that_becomes_free() -> None:
    async with serving(quotas={"most_sandboxes": 1}) as served:
        _, token = served.add_token(served.admin)
        first = await AsyncSandbox.create("base", url=served.url, token=token)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(free_when_refused, served, first)
            second = await AsyncSandbox.create("base", url=served.url, token=token)
        assert second.id != first.id
        await second.destroy()


async def free_when_refused(served: Served, sandbox: AsyncSandbox) -> None:
    with anyio.fail_after(60):
        while 'code="unavailable"' not in served.parts.counters.render():
            await anyio.sleep(0.01)
    await sandbox.destroy()
