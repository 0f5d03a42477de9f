import { isIPv6 } from 'node:net';
import { isAbsolute, normalize } from 'node:path';
import { parseDuration } from '#base/duration.ts';
import type { NfsMountOptions } from '#base/nfs-mount.ts';
import { parseSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import type { NfsConnection } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { DataPaths } from '../file-store/layout.ts';
import { parsePathTemplate } from './path-template.ts';

/** Options that are part of a volume's source, unchanged. */
type SourceOptions = Pick<NfsConnection, 'client' | 'mountPort' | 'network' | 'retries' | 'sourcePorts' | 'tls'>;

export interface NfsOptions extends NfsMountOptions, SourceOptions {
  /** Names or addresses of one server. If one does not answer, the next is tried. */
  readonly hosts: readonly [string, ...string[]];
  /** Undefined: 2049. */
  readonly port: number | undefined;
  /** The directory to mount: the export, or a directory below it. */
  readonly path: string;
  readonly uid: number | undefined;
  readonly gid: number | undefined;
  readonly mode: number;
  /** Deadline of one call to the server, in ms. */
  readonly timeout: number;
  readonly hard: boolean;
  readonly pathTemplate: DataPaths | undefined;
}

export const optionHelp = {
  port: 'port of the NFS service (default: 2049)',
  mountport: 'port of the MOUNT service (default: the port that the portmapper on port 111 returns)',
  sourceport: 'privileged: connect from source ports below 1024, which many servers require; or a single port number',
  uid: "numeric owner of a new volume's top directory (default: the owner that the server assigns)",
  gid: "numeric group of a new volume's top directory (default: the group that the server assigns)",
  mode: "permissions of a new volume's top directory, octal (default: 0755)",
  squash:
    'none (default): root accesses the server as root; root: map root to uid and gid; all: map every user to uid and gid. If the server maps root to nobody, set squash=root and the uid that owns the export',
  timeout: 'timeout of one call to the server, e.g. 10s (default)',
  retries:
    'connection retries before a call of Stowage itself fails (default: 4); volumes mounted with soft: retries after a timeout before applications get EIO (default: 0; with client=host at least 1)',
  soft: 'mounted volumes: applications get EIO if the server does not answer within the timeout; recent writes may be lost',
  sync: "mounted volumes: every write waits until the data are on the server's disk, as with O_SYNC; much slower (default: data are written to disk when a file is closed or synced)",
  hard: 'mounted volumes (default): applications wait for the server without a limit; they can be killed, and the control plane never waits',
  rsize: 'mounted volumes: maximum size of a read, e.g. 1M (default)',
  wsize: 'mounted volumes: maximum size of a write, e.g. 1M (default)',
  client:
    "built-in (default): mount volumes with Stowage's own NFS client; mounts survive its crashes and upgrades; host: mount with the system's NFS client (mount.nfs), which does not support tls, network, squash or a single sourceport",
  locks:
    'refused (default): flock and POSIX locks fail with ENOLCK, because other nodes would not see them; node: locks work between processes of the same node, for volumes that only one node uses',
  nconnect:
    'number of TCP connections to the server, 1 (default) to 16; stores with the same server and options share them',
  tls: "on: encrypt connections (RFC 9289) and verify the server's certificate with the system's trust store; or a folder with ca.pem, and with client.pem and client.key if the server requires a client certificate; if the folder contains mount.pem and mount.key, mounts use these instead",
  network:
    "network to connect to the server from: netns:NAME or the path of a network namespace; docker:NAME or podman:NAME for a network of that engine (default: the host's network)",
  pathTemplate:
    "path of a volume's data below the export, built from {name}, {id} and {label:KEY}, e.g. {label:team}/{name} (default: {name})",
} as const;

type RawOptions = Readonly<Record<string, string>>;

function invalid(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'store-option-invalid', action });
}

const invalidValue = (key: keyof typeof optionHelp, value: string): StowageError =>
  invalid(`${quoted(value)} is not a value for the option ${key}`, `${key}: ${optionHelp[key]}.`);

function parseInteger(given: RawOptions, key: keyof typeof optionHelp, min: number, max: number): number | undefined {
  const value = given[key];
  if (value === undefined) return undefined;
  if (!/^\d{1,10}$/.test(value) || Number(value) < min || Number(value) > max) throw invalidValue(key, value);
  return Number(value);
}

function parseChoice<T extends string>(
  given: RawOptions,
  key: keyof typeof optionHelp,
  allowed: readonly T[],
): T | undefined {
  const value = given[key];
  if (value === undefined) return undefined;
  const found = allowed.find((one) => one === value);
  if (found === undefined) throw invalidValue(key, value);
  return found;
}

function parseFlag(given: RawOptions, key: 'soft' | 'hard' | 'sync'): boolean | undefined {
  const value = parseChoice(given, key, ['', 'true', 'false']);
  return value === undefined ? undefined : value !== 'false';
}

function parseMode(given: RawOptions): number {
  const value = given['mode'] ?? '0755';
  if (!/^0?[0-7]{3,4}$/.test(value)) throw invalidValue('mode', value);
  return Number.parseInt(value, 8);
}

const maxTransferBytes = 1024 * 1024;
const minTransferBytes = 4096;

function parseTransferSize(given: RawOptions, key: 'rsize' | 'wsize'): number {
  const value = given[key];
  const bytes = value === undefined ? BigInt(maxTransferBytes) : parseSize(value);
  if (bytes === undefined || bytes < minTransferBytes || bytes > maxTransferBytes) throw invalidValue(key, value ?? '');
  return Number(bytes);
}

const maxTimeoutMs = 10 * 60_000;

function parseTimeout(given: RawOptions): number {
  const value = given['timeout'] ?? '10s';
  const ms = parseDuration(value);
  if (ms === undefined || ms < 100 || ms > maxTimeoutMs) throw invalidValue('timeout', value);
  return ms;
}

function parseHard(given: RawOptions): boolean {
  const [isHard, isSoft] = [parseFlag(given, 'hard'), parseFlag(given, 'soft')];
  if (isHard !== undefined && isSoft !== undefined && isHard === isSoft)
    throw invalid('a store is either soft or hard', 'Give one of the two.');
  return isHard ?? (isSoft === undefined || !isSoft);
}

function parseSourcePorts(given: RawOptions): NfsOptions['sourcePorts'] {
  if (given['sourceport'] === 'privileged') return 'privileged';
  const port = parseInteger(given, 'sourceport', 1, 65_535);
  // One source port allows one connection.
  if (port !== undefined && (parseInteger(given, 'nconnect', 1, 16) ?? 1) > 1)
    throw invalid('several connections cannot have one source port', `Use sourceport=privileged, or nconnect=1.`);
  return port;
}

function parseTls(given: RawOptions): NfsOptions['tls'] {
  const value = given['tls'];
  if (value === undefined || value === 'off' || value === 'false') return undefined;
  if (value === '' || value === 'on' || value === 'true') return { folder: undefined };
  if (!isAbsolute(value)) throw invalidValue('tls', value);
  return { folder: value };
}

function parseNetwork(given: RawOptions): string | undefined {
  const value = given['network'];
  if (value === undefined) return undefined;
  if (isAbsolute(value) || /^(?:netns|docker|podman):[A-Za-z0-9][A-Za-z0-9_.-]{0,200}$/.test(value)) return value;
  throw invalidValue('network', value);
}

/** Options that the system's NFS client does not support. */
const builtInOnlyOptions = ['tls', 'network', 'squash'] as const;

function parseClient(given: RawOptions): NfsOptions['client'] {
  const choice = parseChoice(given, 'client', ['built-in', 'host']) ?? 'built-in';
  if (choice === 'built-in') return choice;
  const isDefault = (key: string): boolean => [undefined, 'off', 'false', 'none'].includes(given[key]);
  const unsupported = [
    ...builtInOnlyOptions.filter((key) => !isDefault(key)),
    ...(parseSourcePorts(given) === undefined || given['sourceport'] === 'privileged' ? [] : ['sourceport']),
  ];
  if (unsupported.length === 0) return choice;
  throw invalid(
    `the system's NFS client does not support the option${unsupported.length === 1 ? '' : 's'} ${unsupported.join(', ')}`,
    'Remove client=host: the built-in client supports them.',
  );
}

function invalidUri(uri: string, why: string): StowageError {
  return invalid(
    `${quoted(uri)} is not the URI of an NFS store: ${why}`,
    'Write nfs://, a server and the path of its export, for example nfs://10.10.2.4/export/silver',
  );
}

interface ParsedUri {
  readonly hosts: NfsOptions['hosts'];
  readonly port: number | undefined;
  readonly path: string;
}

/** The longest path that can be mounted: RFC 1813, section 5.1.4. */
const maxPathBytes = 1024;
const isHost = (host: string): boolean =>
  host.startsWith('[') ? host.endsWith(']') && isIPv6(withoutBrackets(host)) : /^[A-Za-z0-9_.-]+$/.test(host);
const withoutBrackets = (host: string): string => host.replace(/^\[|\]$/g, '');

function parseUri(uri: string): ParsedUri {
  if (uri.includes('#')) throw invalidUri(uri, "it has a # in it, where a URI's path ends");
  const [, authority = '', rest = ''] = /^nfs:\/\/([^/?]*)([^?]*)/.exec(uri) ?? [];
  const [, given = '', port] = /^(.*?)(?::(\d{1,5}))?$/.exec(authority) ?? [];
  const hosts = given.split(',');
  const [first, ...others] = hosts;
  if (first === undefined || !hosts.every(isHost)) throw invalidUri(uri, 'it names no server');
  if (port !== undefined && (Number(port) < 1 || Number(port) > 65_535))
    throw invalidUri(uri, `there is no port ${port}`);
  let path: string;
  try {
    path = decodeURIComponent(rest);
  } catch (cause) {
    throw invalidUri(uri, `it has a broken %-escape (${String(cause)})`);
  }
  if (path === '') throw invalidUri(uri, 'the path is missing');
  if (/[\0-\x1f]/.test(path)) throw invalidUri(uri, 'the path contains control characters');
  if (path.split('/').includes('..')) throw invalidUri(uri, 'the path must not contain ..');
  if (Buffer.byteLength(path) > maxPathBytes) throw invalidUri(uri, `the path is longer than ${maxPathBytes} bytes`);
  const normalized = normalize(path);
  return {
    hosts: [withoutBrackets(first), ...others.map(withoutBrackets)],
    port: port === undefined ? undefined : Number(port),
    path: normalized.length > 1 && normalized.endsWith('/') ? normalized.slice(0, -1) : normalized,
  };
}

export function parseOptions(uri: string, given: RawOptions): NfsOptions {
  const { hosts, port, path } = parseUri(uri);
  const givenPort = parseInteger(given, 'port', 1, 65_535);
  if (givenPort !== undefined && port !== undefined && givenPort !== port)
    throw invalid(`the URI names port ${port} and the option port ${givenPort}`, 'Give one of the two.');
  // 2^32-1 means "leave as it is" to chown(2).
  const maxId = 2 ** 32 - 2;
  return {
    hosts,
    path,
    port: givenPort ?? port,
    mountPort: parseInteger(given, 'mountport', 1, 65_535),
    uid: parseInteger(given, 'uid', 0, maxId),
    gid: parseInteger(given, 'gid', 0, maxId),
    mode: parseMode(given),
    squash: parseChoice(given, 'squash', ['none', 'root', 'all']) ?? 'none',
    retries: parseInteger(given, 'retries', 0, 100),
    sync: parseFlag(given, 'sync') ?? false,
    timeout: parseTimeout(given),
    hard: parseHard(given),
    maxRead: parseTransferSize(given, 'rsize'),
    maxWrite: parseTransferSize(given, 'wsize'),
    connections: parseInteger(given, 'nconnect', 1, 16) ?? 1,
    sourcePorts: parseSourcePorts(given),
    tls: parseTls(given),
    network: parseNetwork(given),
    client: parseClient(given),
    locks: parseChoice(given, 'locks', ['node', 'refused']) ?? 'refused',
    pathTemplate: given['pathTemplate'] === undefined ? undefined : parsePathTemplate(given['pathTemplate']),
  };
}

/** The directory as people write it: `server:/export`. */
export function displayLocation({ hosts, path }: Pick<NfsOptions, 'hosts' | 'path'>): string {
  const [first] = hosts;
  return `${first.includes(':') ? `[${first}]` : first}:${path === '/' ? '' : path}`;
}
