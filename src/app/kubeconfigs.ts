import { readFile } from 'node:fs/promises';
import { delimiter, dirname, isAbsolute, join, resolve } from 'node:path';
import { parseDocument } from 'yaml';
import { errnoOf } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';

type Entry = Readonly<Record<string, unknown>>;
const entryOf = (value: unknown): Entry => (typeof value === 'object' && value !== null ? (value as Entry) : {});
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

export interface KubeconfigOptions {
  /** If set, read only this file. */
  readonly file: string | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly home: string;
}

/** Searches the same paths as kubectl; files listed in KUBECONFIG need not exist. */
function pathsFor({ file, env, home }: KubeconfigOptions): {
  readonly paths: readonly string[];
  readonly mustExist: boolean;
} {
  if (file !== undefined) return { paths: [resolve(file)], mustExist: true };
  const listed = (env['KUBECONFIG'] ?? '').split(delimiter).filter((path) => path !== '');
  const paths = listed.length > 0 ? listed : [join(home, '.kube', 'config')];
  return { paths: [...new Set(paths.map((path) => resolve(path)))], mustExist: false };
}

/** Returns the merged files with absolute paths. Undefined: no file exists. */
export async function readKubeconfigs(options: KubeconfigOptions): Promise<object | undefined> {
  const { paths, mustExist } = pathsFor(options);
  const found: Entry[] = [];
  for (const path of paths) {
    const text = await readText(path, mustExist);
    if (text !== undefined) found.push(withAbsolutePaths(parseKubeconfig(text, path), dirname(path)));
  }
  return found.length === 0 ? undefined : mergeKubeconfigs(found);
}

async function readText(path: string, mustExist: boolean): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    const code = errnoOf(cause) ?? 'unknown';
    if (code === 'ENOENT' && !mustExist) return undefined;
    throw unreadable(path, code, cause);
  }
}

function parseKubeconfig(text: string, path: string): Entry {
  const document = parseDocument(text);
  // The parser's message is not shown: it quotes lines, which may contain credentials.
  if (document.errors.length > 0) throw unreadable(path, 'it is not YAML');
  return entryOf(document.toJS());
}

const unreadable = (path: string, why: string, cause?: unknown): StowageError =>
  new StowageError(`cannot read the kubeconfig ${path} (${why})`, {
    code: 'invalid',
    reason: 'kubeconfig-unreadable',
    action: 'Specify a readable kubeconfig with --kubeconfig FILE or in KUBECONFIG.',
    cause,
  });

const pathFields = ['certificate-authority', 'client-certificate', 'client-key', 'tokenFile'];

/** Relative paths are relative to their file's folder, so resolve them before merging. */
function withAbsolutePaths(config: Entry, folder: string): Entry {
  const absolutePath = (path: unknown): unknown =>
    typeof path === 'string' && path !== '' && !isAbsolute(path) ? join(folder, path) : path;
  const resolvePaths = (value: unknown): Entry => {
    const entry = { ...entryOf(value) };
    for (const field of pathFields) if (entry[field] !== undefined) entry[field] = absolutePath(entry[field]);
    const exec = entryOf(entry['exec']);
    // A bare name is looked up on the PATH.
    if (typeof exec['command'] === 'string' && exec['command'].includes('/'))
      entry['exec'] = { ...exec, command: absolutePath(exec['command']) };
    return entry;
  };
  const each = (list: unknown, field: string): readonly Entry[] =>
    listOf(list).map((one) => ({ ...entryOf(one), [field]: resolvePaths(entryOf(one)[field]) }));
  return {
    ...config,
    clusters: each(config['clusters'], 'cluster'),
    users: each(config['users'], 'user'),
    contexts: listOf(config['contexts']),
  };
}

/** The first file that defines a cluster, user or context wins; entries are not merged with each other. */
function mergeKubeconfigs(configs: readonly Entry[]): object {
  const first = (list: string): readonly Entry[] => {
    const known = new Map<unknown, Entry>();
    for (const one of configs.flatMap((config) => listOf(config[list]).map(entryOf)))
      if (!known.has(one['name'])) known.set(one['name'], one);
    return [...known.values()];
  };
  const current = configs.map((config) => config['current-context']).find((name) => name !== undefined && name !== '');
  return {
    clusters: first('clusters'),
    users: first('users'),
    contexts: first('contexts'),
    ...(current === undefined ? {} : { 'current-context': current }),
  };
}
