/** What a model sends to a tool, described as JSON Schema and checked against that. */

import { SandboxError } from "./errors.ts";

/** The little of JSON Schema that tools need. */
export type Schema =
  | { type: "string"; description: string; minLength?: number }
  | { type: "integer"; description: string; minimum: number; maximum: number }
  | { type: "array"; description: string; items: { type: "string" } }
  | { type: "object"; description: string; additionalProperties: { type: "string" } };

/** The input of a tool. */
export interface InputSchema {
  type: "object";
  properties: Readonly<Record<string, Schema>>;
  required: readonly string[];
  additionalProperties: false;
}

/** Return a description of an input; names that end in "?" may be left out. */
export function describeInput(fields: Readonly<Record<string, Schema>>): InputSchema {
  const names = Object.keys(fields);
  return {
    type: "object",
    properties: Object.fromEntries(names.map((name) => [bare(name), fields[name] as Schema])),
    required: names.filter((name) => !name.endsWith("?")),
    additionalProperties: false,
  };
}

/** Return an input if it is as described; throws `SandboxError` that says what is wrong. */
export function checkInput<T>(schema: InputSchema, input: unknown): T {
  if (!isRecord(input)) {
    throw new SandboxError("the input of a tool is an object");
  }
  for (const name of schema.required) {
    if (input[name] === undefined) {
      throw new SandboxError(`${name} is missing`);
    }
  }
  for (const [name, value] of Object.entries(input)) {
    const field = Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined;
    if (field === undefined) {
      throw new SandboxError(
        `${name} is unknown; there is: ${Object.keys(schema.properties).join(", ")}`,
      );
    }
    if (value !== undefined && !fits(field, value)) {
      throw new SandboxError(`${name} is not as it has to be: ${JSON.stringify(field)}`);
    }
  }
  return input as T;
}

function fits(field: Schema, value: unknown): boolean {
  switch (field.type) {
    case "string":
      return typeof value === "string" && value.length >= (field.minLength ?? 0);
    case "integer":
      return (
        Number.isInteger(value) &&
        (value as number) >= field.minimum &&
        (value as number) <= field.maximum
      );
    case "array":
      return Array.isArray(value) && value.every((each) => typeof each === "string");
    case "object":
      return isRecord(value) && Object.values(value).every((each) => typeof each === "string");
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function bare(name: string): string {
  return name.replace(/\?$/, "");
}
