/** The files of a sandbox, and workspaces that outlive their sandboxes. */

import { type Data, toBytes, toExactText } from "./bytes.ts";
import { type Abortable, Client, type Connection, readBody } from "./client.ts";
import { errorOf, InvalidRequest, NotFound, Unavailable } from "./errors.ts";
import { readChunks, readLines } from "./events.ts";
import type { components } from "./generated/api.ts";

/** A file, a directory or a link. */
export type FileInfo = components["schemas"]["FileAnswer"];
/** Some lines of a text file. */
export type TextPage = components["schemas"]["PageAnswer"];
/** The lines that match, and what ended the search early. */
export type SearchResult = components["schemas"]["SearchAnswer"];
/** What was unpacked. */
export type TreeInfo = components["schemas"]["TreeAnswer"];
/** A workspace that outlives its sandboxes. */
export type WorkspaceInfo = components["schemas"]["WorkspaceAnswer"];

/** Something that happened below a directory. */
export interface FileChange {
  type: "created" | "changed" | "removed";
  file: FileInfo;
}

/** Which part of a file is read. */
export interface ReadOptions extends Abortable {
  offset?: number;
  length?: number;
}

/** How a file is written. */
export interface WriteOptions extends Abortable {
  /** Its permissions, such as 0o755. */
  mode?: number;
  /** Replace only this version of the file; another one is a `Conflict`. */
  ifMatch?: string;
  /** Replace none: a file that is there is a `Conflict`. */
  ifNew?: boolean;
}

const MOST_MODE = 0o777;

/** The files of a sandbox; paths are relative to its workspace. */
export class Files {
  readonly #client: Client;
  readonly #sandbox: string;

  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Read a file as text; throws `InvalidRequest` if it is no UTF-8. */
  async read(path: string, options: ReadOptions = {}): Promise<string> {
    return toExactText(await this.readBytes(path, options), JSON.stringify(path));
  }

  /** Read a file, or a part of it, as it is. */
  async readBytes(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
    const answer = await this.#open(path, options);
    return new Uint8Array(await readBody(() => answer.arrayBuffer(), options.signal));
  }

  /** Read a file of any size as it comes; leaving early ends it. */
  async *readChunks(
    path: string,
    options: ReadOptions = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    yield* readChunks(await this.#open(path, options), options.signal);
  }

  /** Replace a file; its parents are made. A stream is sent as it comes. */
  async write(
    path: string,
    data: Data | Blob | ReadableStream<Uint8Array>,
    options: WriteOptions = {},
  ): Promise<FileInfo> {
    const { mode, ifMatch, ifNew, signal } = options;
    const conditions: Record<string, string> = {
      ...(ifMatch === undefined ? {} : { "If-Match": ifMatch }),
      ...(ifNew ? { "If-None-Match": "*" } : {}),
    };
    return this.#client.call("put", "/sandboxes/{sandbox}/files/{path}", {
      path: { sandbox: this.#sandbox, path },
      query: mode === undefined ? {} : { mode: mode & MOST_MODE },
      data: typeof data === "string" ? toBytes(data) : data,
      headers: conditions,
      // Sent twice, a condition that was met the first time fails the second time.
      isSafe: Object.keys(conditions).length === 0,
      signal,
    });
  }

  /** List all of a directory by name, links included. */
  list(path = ".", options: Abortable & { limit?: number } = {}): Promise<FileInfo[]> {
    const { signal, ...query } = options;
    return this.#client.call("get", "/sandboxes/{sandbox}/list", {
      path: this.#path,
      query: { path, ...query },
      signal,
    });
  }

  /** Tell about a file, a directory or a link. */
  stat(path = ".", options: Abortable = {}): Promise<FileInfo> {
    const query = { path };
    return this.#client.call("get", "/sandboxes/{sandbox}/stat", {
      path: this.#path,
      query,
      ...options,
    });
  }

  /** Whether there is such a file, directory or link. */
  async exists(path: string, options: Abortable = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof NotFound && error.details.sandbox === undefined) {
        return false;
      }
      throw error;
    }
  }

  /** Return the version of a file, for `write` with `ifMatch`. */
  async version(path: string, options: Abortable = {}): Promise<string> {
    const answer = await this.#open(path, { ...options, length: 0 });
    await readBody(() => answer.arrayBuffer(), options.signal);
    return answer.headers.get("etag") ?? "";
  }

  /** Remove a file, a link or an empty directory; a full one only with `recursive`. */
  async remove(path: string, options: Abortable & { recursive?: boolean } = {}): Promise<void> {
    await this.#client.call("delete", "/sandboxes/{sandbox}/files/{path}", {
      path: { sandbox: this.#sandbox, path },
      query: { recursive: options.recursive ?? false },
      signal: options.signal,
      // Sent again after it was done, it would find nothing.
      isSafe: false,
    });
  }

  /** Rename within the workspace, replacing a file. */
  async rename(source: string, target: string, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/sandboxes/{sandbox}/rename", {
      path: this.#path,
      body: { source, target },
      ...options,
    });
  }

  /** Make a directory and its parents. */
  async makeDir(path: string, options: Abortable = {}): Promise<void> {
    await this.#client.call("post", "/sandboxes/{sandbox}/make_dir", {
      path: this.#path,
      body: { path },
      isSafe: true,
      ...options,
    });
  }

  /** Read some lines of a text file, and where the next page begins. */
  readPage(
    path: string,
    options: Abortable & { startLine?: number; lines?: number; maxBytes?: number } = {},
  ): Promise<TextPage> {
    const { signal, startLine: start_line, lines, maxBytes: max_bytes } = options;
    return this.#client.call("get", "/sandboxes/{sandbox}/page", {
      path: this.#path,
      query: { path, start_line, lines, max_bytes },
      signal,
    });
  }

  /** Find the lines of text files that match a regular expression of Python. */
  search(
    pattern: string,
    options: Abortable & { path?: string; glob?: string; limit?: number } = {},
  ): Promise<SearchResult> {
    const { signal, ...query } = options;
    return this.#client.call("get", "/sandboxes/{sandbox}/search", {
      path: this.#path,
      query: { pattern, ...query },
      signal,
    });
  }

  /** List what matches a glob by name, or by path if the glob has a slash. */
  searchNames(
    glob: string,
    options: Abortable & { path?: string; limit?: number } = {},
  ): Promise<FileInfo[]> {
    const { signal, ...query } = options;
    return this.#client.call("get", "/sandboxes/{sandbox}/search_names", {
      path: this.#path,
      query: { glob, ...query },
      signal,
    });
  }

  /** Read a file or a tree as a tar archive, as it comes; links are left out. */
  async *readArchive(
    path = ".",
    options: Abortable = {},
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const answer = await this.#client.send("get", "/sandboxes/{sandbox}/archive", {
      path: this.#path,
      query: { path },
      ...options,
    });
    yield* readChunks(answer, options.signal);
  }

  /** Unpack a tar archive, plain or gzip, below a directory. */
  writeArchive(
    archive: Uint8Array | Blob | ReadableStream<Uint8Array>,
    path = ".",
    options: Abortable = {},
  ): Promise<TreeInfo> {
    return this.#client.call("put", "/sandboxes/{sandbox}/archive", {
      path: this.#path,
      query: { path },
      data: archive,
      ...options,
    });
  }

  /** Yield what changes below a directory, until it is left; `onReady` is called once nothing is missed any more. */
  async *watch(
    path = ".",
    options: Abortable & { onReady?: () => unknown } = {},
  ): AsyncGenerator<FileChange, void, undefined> {
    const answer = await this.#client.send("get", "/sandboxes/{sandbox}/watch", {
      path: this.#path,
      query: { path },
      signal: options.signal,
    });
    for await (const { event, data } of readServerEvents(answer, options.signal)) {
      if (event === "error") {
        throw errorOf(JSON.parse(data));
      }
      if (event === "ready") {
        await options.onReady?.();
      } else {
        yield JSON.parse(data);
      }
    }
    throw new Unavailable(`the server no longer watches ${JSON.stringify(path)}`, {
      retryable: true,
    });
  }

  async #open(path: string, options: ReadOptions): Promise<Response> {
    const { signal, offset, length } = options;
    const answer = await this.#client.send("get", "/sandboxes/{sandbox}/files/{path}", {
      path: { sandbox: this.#sandbox, path },
      query: { offset, length },
      signal,
    });
    if (!answer.headers.has("atoll-kind")) {
      await answer.body?.cancel();
      throw new InvalidRequest(`${JSON.stringify(path)} is a directory; list it instead`);
    }
    return answer;
  }

  get #path(): { sandbox: string } {
    return { sandbox: this.#sandbox };
  }
}

/** Workspaces that outlive their sandboxes; the first sandbox that names one makes it. */
export class Workspaces {
  readonly #client: Client;

  constructor(connection: Connection = {}) {
    this.#client = new Client(connection);
  }

  /** List them, the newest first. */
  list(options: Abortable = {}): Promise<WorkspaceInfo[]> {
    return this.#client.call("get", "/workspaces", options);
  }

  /** Tell about one. */
  find(workspace: string, options: Abortable = {}): Promise<WorkspaceInfo> {
    return this.#client.call("get", "/workspaces/{workspace}", { path: { workspace }, ...options });
  }

  /** Remove one with all its files; a `Conflict` while a sandbox has it. */
  async remove(workspace: string, options: Abortable = {}): Promise<void> {
    await this.#client.call("delete", "/workspaces/{workspace}", {
      path: { workspace },
      ...options,
    });
  }
}

async function* readServerEvents(
  answer: Response,
  signal?: AbortSignal,
): AsyncGenerator<{ event: string; data: string }, void, undefined> {
  let fields: Record<string, string> = {};
  for await (const line of readLines(answer, signal)) {
    if (line !== "") {
      const at = line.indexOf(": ");
      fields[line.slice(0, at)] = line.slice(at + 2);
    } else if (fields.data !== undefined) {
      yield { event: fields.event ?? "message", data: fields.data };
      fields = {};
    } else {
      fields = {}; // a comment, which only shows that the server lives
    }
  }
}
