// Who is logged in, or a field for a token. Everything that comes from the server is shown as text.

const find = (id) => document.getElementById(id);

async function show() {
  const answer = await fetch("/auth/me");
  const known = answer.ok;
  if (known) {
    const me = await answer.json();
    find("name").textContent = me.name;
    find("scope").textContent = me.scope;
  }
  find("known").hidden = !known;
  find("stranger").hidden = known;
}

async function send(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  find("told").textContent = answer.ok ? "" : (await answer.json()).message;
  await show();
}

find("stranger").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = find("token").value.trim();
  find("token").value = "";
  await send("/auth/token", { token });
});
find("leave").addEventListener("click", () => send("/auth/logout", {}));
await show();
