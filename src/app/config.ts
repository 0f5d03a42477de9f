import { readFile } from 'node:fs/promises';
import { isMap, isScalar, LineCounter, type Node, type Pair, parseDocument, type YAMLMap } from 'yaml';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import type { StoreConfig } from '#core/model.ts';
import type { StoreKind } from '#core/ports.ts';
import { parseStoreConfig } from '#core/store-uri.ts';
import type { EngineSocketSettings } from './engines.ts';
import { parseListen } from './listen.ts';

/** The content of stowage.yaml. */
export interface FileConfig {
  readonly stores: readonly StoreConfig[];
  readonly defaultStore: string | undefined;
  readonly listen: string | undefined;
  /** The folder for the sockets of volume plugins, or `none`. */
  readonly plugins: string | undefined;
  readonly engines: EngineSocketSettings;
}

const emptyConfig: FileConfig = {
  stores: [],
  defaultStore: undefined,
  listen: undefined,
  plugins: undefined,
  engines: {},
};

/** A file larger than this is not a configuration. */
const maxBytes = 1 << 20;
const topKeys = ['version', 'default', 'listen', 'plugins', 'engines', 'stores', 'clients'];
const engineKinds = ['docker', 'podman'] as const;

type ConfigError = (node: unknown, message: string, action: string) => StowageError;

/** `asked`: the user named the file, so it must exist. */
export async function readConfigFile(
  path: string | undefined,
  isRequired: boolean,
  kinds: ReadonlyMap<string, StoreKind>,
): Promise<FileConfig | undefined> {
  if (path === undefined) return undefined;
  const found = await readConfig(path, kinds);
  if (found !== undefined || !isRequired) return found;
  throw new StowageError(`configuration file ${path} not found`, {
    code: 'invalid',
    reason: 'config-missing',
    action: 'Correct --config, or omit it to run without a configuration file.',
  });
}

/** Undefined: the file does not exist. */
export async function readConfig(path: string, kinds: ReadonlyMap<string, StoreKind>): Promise<FileConfig | undefined> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw new StowageError(`cannot read ${path}`, {
      code: 'invalid',
      reason: 'config-unreadable',
      action: 'Check its owner and mode: the user who runs Stowage must be able to read it.',
      cause,
    });
  }
  return parseConfig(path, text, kinds);
}

/** Errors name the file, line and column. */
export function parseConfig(path: string, text: string, kinds: ReadonlyMap<string, StoreKind>): FileConfig {
  const lines = new LineCounter();
  const configError: ConfigError = (node, message, action) => {
    const offset = isNode(node) ? (node.range?.[0] ?? 0) : 0;
    // If the file is rejected as a whole, there are no line starts yet.
    const { line, col } = lines.lineStarts.length === 0 ? { line: 1, col: 1 } : lines.linePos(offset);
    return new StowageError(`${path}:${line}:${col}: ${message}`, {
      code: 'invalid',
      reason: 'config-invalid',
      action,
    });
  };
  if (text.length > maxBytes)
    throw configError(undefined, 'the configuration file is too large', 'The maximum size is 1 MiB.');
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const [error] = document.errors;
  if (error !== undefined) {
    const { line, col } = lines.linePos(error.pos[0]);
    throw new StowageError(`${path}:${line}:${col}: ${error.message}`, {
      code: 'invalid',
      reason: 'config-invalid',
      action: 'Correct the YAML at this position: indent with spaces, and quote values that contain a colon or a hash.',
    });
  }
  const top = document.contents;
  if (top === null || (isScalar(top) && top.value === null)) return emptyConfig;
  if (!isMap(top)) throw configError(top, 'expected a map', `Start the file with: version: 1`);
  for (const pair of top.items) {
    const key = keyOf(pair);
    if (!topKeys.includes(key))
      throw configError(pair.key, `unknown key '${key}'`, `Allowed keys: ${topKeys.join(', ')}`);
  }
  const version: unknown = top.get('version');
  if (version !== undefined && version !== 1) {
    throw configError(
      top.get('version', true),
      `version ${String(version)} is not supported`,
      'Use version: 1, or upgrade Stowage.',
    );
  }
  checkClients(top, configError);
  const stores = storesIn(top, configError, kinds);
  return {
    stores,
    defaultStore: defaultIn(top, stores, configError),
    listen: listenIn(top, configError),
    plugins: pathAt(top, 'plugins', configError),
    engines: enginesIn(top, configError),
  };
}

const isNode = (value: unknown): value is Node => typeof value === 'object' && value !== null && 'range' in value;
const keyOf = (pair: Pair): string => (isScalar(pair.key) ? String(pair.key.value) : '');

function textAt(map: YAMLMap, key: string, complain: ConfigError): string | undefined {
  const node = map.get(key, true);
  if (node === undefined) return undefined;
  if (isScalar(node) && typeof node.value === 'string') return node.value;
  throw complain(node, `'${key}' is not a string`, `Use ${key}: value`);
}

function mapAt(map: YAMLMap, key: string, complain: ConfigError): YAMLMap | undefined {
  const node: unknown = map.get(key, true);
  if (node === undefined || (isScalar(node) && node.value === null)) return undefined;
  if (isMap(node)) return node;
  throw complain(node, `'${key}' is not a map`, `Indent the keys under ${key}:`);
}

function storesIn(top: YAMLMap, complain: ConfigError, kinds: ReadonlyMap<string, StoreKind>): StoreConfig[] {
  return (mapAt(top, 'stores', complain)?.items ?? []).map((pair) => {
    const name = keyOf(pair);
    try {
      return parseStoreConfig(name, uriFrom(name, pair, complain), 'file', kinds);
    } catch (thrown) {
      if (!(thrown instanceof StowageError) || thrown.reason === 'config-invalid') throw thrown;
      throw complain(positionOf(pair, thrown.message), thrown.message, thrown.action);
    }
  });
}

/** The key of the option that the message names, otherwise that of the store. */
function positionOf(pair: Pair, message: string): unknown {
  const value = pair.value;
  const wrongOption = isMap(value) ? value.items.find((item) => message.includes(keyOf(item))) : undefined;
  return wrongOption?.key ?? pair.key;
}

/** `name: URI`, or a map with `uri` and options: YAML keys and the query of a URI are equivalent. */
function uriFrom(name: string, pair: Pair, complain: ConfigError): string {
  const { value } = pair;
  if (isScalar(value) && typeof value.value === 'string') return value.value;
  if (!isMap(value)) throw complain(pair.key, `store '${name}' has no URI`, `Use ${name}: local:///srv/data`);
  const uri = textAt(value, 'uri', complain);
  if (uri === undefined) throw complain(pair.key, `store '${name}' has no uri`, 'Add: uri: local:///srv/data');
  if (!/^[a-z][a-z0-9+-]*:/.test(uri))
    throw complain(value.get('uri', true), `'${uri}' is not a URI`, 'Use a URI such as local:///srv/data');
  // Not with URL, which rejects several addresses as a host.
  const at = uri.indexOf('?');
  const place = at === -1 ? uri : uri.slice(0, at);
  const query = new URLSearchParams(at === -1 ? '' : uri.slice(at));
  for (const item of value.items) {
    const key = keyOf(item);
    if (key === 'uri') continue;
    if (!isScalar(item.value) || item.value.value === null)
      throw complain(item.key, `'${key}' is not a scalar`, `Use ${key}: value`);
    if (query.has(key))
      throw complain(item.key, `'${key}' is already set in the URI`, 'Set the option either in the URI or as a key.');
    // The source text, since YAML would parse mode: 0750 as a number.
    query.set(key, item.value.source ?? String(item.value.value));
  }
  return query.size === 0 ? place : `${place}?${query}`;
}

function defaultIn(top: YAMLMap, stores: readonly StoreConfig[], complain: ConfigError): string | undefined {
  const name = textAt(top, 'default', complain);
  if (name === undefined || stores.some((store) => store.name === name)) return name;
  throw complain(
    top.get('default', true),
    `the default store '${name}' is not defined`,
    'Use the name of a store under stores:',
  );
}

function listenIn(top: YAMLMap, complain: ConfigError): string | undefined {
  const node = top.get('listen', true);
  // YAML parses a bare port as a number.
  const given = isScalar(node) && typeof node.value === 'number' ? String(node.value) : textAt(top, 'listen', complain);
  try {
    if (given !== undefined) parseListen(given);
    return given;
  } catch (thrown) {
    if (!(thrown instanceof StowageError)) throw thrown;
    throw complain(node, thrown.message, thrown.action);
  }
}

/** An absolute path, since the server's working directory is not known; or `none`. */
function pathAt(map: YAMLMap, key: string, complain: ConfigError): string | undefined {
  const path = textAt(map, key, complain);
  if (path === undefined || path === 'none' || path.startsWith('/')) return path;
  throw complain(map.get(key, true), `'${path}' is not an absolute path`, `Use ${key}: /run/…, or ${key}: none`);
}

function enginesIn(top: YAMLMap, complain: ConfigError): EngineSocketSettings {
  const map = mapAt(top, 'engines', complain);
  if (map === undefined) return {};
  for (const pair of map.items) {
    const kind = keyOf(pair);
    if (!engineKinds.some((known) => known === kind))
      throw complain(
        pair.key,
        `'${kind}' is not a supported container engine`,
        `Use one of: ${engineKinds.join(', ')}`,
      );
  }
  return Object.fromEntries(engineKinds.map((kind) => [kind, pathAt(map, kind, complain)]));
}

function checkClients(top: YAMLMap, complain: ConfigError): void {
  for (const pair of mapAt(top, 'clients', complain)?.items ?? []) {
    const kind = keyOf(pair);
    if (!['directory', 'loop'].includes(kind))
      throw complain(pair.key, `there is no client for '${kind}'`, 'Use one of: directory, loop');
    if (isScalar(pair.value) && pair.value.value === 'builtin') continue;
    throw complain(pair.key, `'${kind}' has only the built-in client`, `Use ${kind}: builtin, or omit the key.`);
  }
}
