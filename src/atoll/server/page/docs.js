// Shows openapi.json, which this server gives itself. Everything in it is shown as text.

function make(name, ...inside) {
  const element = document.createElement(name);
  element.append(...inside);
  return element;
}

function showOperation(path, method, operation) {
  const name = make("span", method.toUpperCase());
  name.className = "method";
  const shown = make("details", make("summary", name, make("code", path), ` ${operation.summary ?? ""}`));
  if (operation.description) shown.append(make("p", operation.description));
  const fields = (operation.parameters ?? []).map((each) =>
    make("li", make("code", each.name), ` in ${each.in}${each.required ? ", required" : ""}`),
  );
  if (fields.length) shown.append(make("ul", ...fields));
  const parts = { request: operation.requestBody?.content, answers: operation.responses };
  for (const [title, part] of Object.entries(parts)) {
    if (part) shown.append(make("h4", title), make("pre", JSON.stringify(part, null, 2)));
  }
  return shown;
}

const description = await (await fetch("/openapi.json")).json();
const groups = new Map();
for (const [path, item] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(item)) {
    const name = operation.tags?.[0] ?? "other";
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(showOperation(path, method, operation));
  }
}
const schemas = Object.entries(description.components.schemas).map(([name, schema]) =>
  make("details", make("summary", make("code", name)), make("pre", JSON.stringify(schema, null, 2))),
);
groups.set("shapes", schemas);
const place = document.getElementById("groups");
for (const [name, shown] of groups) place.append(make("section", make("h2", name), ...shown));
