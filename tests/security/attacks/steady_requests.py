# mypy: allow-untyped-defs, allow-untyped-calls
"""Runs inside a sandbox: one ordinary request after another, each with a mark of its own that has to come back.

Standard library only. Reads `{"host", "mark", "seconds"}`; prints `{"answered", "strange": [what came instead], "slowest_seconds"}`.
"""

import http.client
import json
import sys
import time

orders = json.load(sys.stdin)
end, answered, strange, slowest = time.monotonic() + orders["seconds"], 0, [], 0.0
connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=60)
while time.monotonic() < end:
    mark = f"{orders['mark']}-{answered}-".encode() * 50
    begun = time.monotonic()
    try:
        connection.request("POST", f"http://{orders['host']}/open", mark)
        answer = connection.getresponse()
        came = answer.read()
    except (OSError, http.client.HTTPException) as error:
        came = repr(error).encode()
        connection.close()
    slowest = max(slowest, time.monotonic() - begun)
    answered += came == mark
    if came != mark:
        strange.append(came[:200].decode("latin-1"))
print(json.dumps({"answered": answered, "strange": strange[:20], "slowest_seconds": slowest}))
