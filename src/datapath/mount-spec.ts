import type { NfsMount, NfsQuota } from '#base/nfs-mount.ts';

/**
 * The description of a mount for a data path: plain data, passed through the keeper. May contain a certificate's key.
 */
export interface MountSpec extends NfsMount {
  /** 2: permissions are not checked by the kernel. 3: `sync`. An older data path must not serve a newer version. */
  readonly version: 1 | 2 | 3;
  /** Addresses of one server, in the order of attempts. */
  readonly addresses: readonly [string, ...string[]];
  /** Use local ports below 1024, as many servers require. */
  readonly privilegedPorts: boolean;
  readonly tls: TlsSpec | undefined;
  /** `soft`: EIO after this time without an answer, all attempts together. Undefined: `hard`. */
  readonly softMs: number | undefined;
  /** How long names and attributes are trusted without asking the server. */
  readonly cacheMs: number;
  /**
   * Who checks permissions: the kernel, or the data path, if all users are one user to the server. Default: the kernel.
   */
  readonly checks?: 'kernel' | 'server' | undefined;
  /** The volume's quota. Undefined: none. */
  readonly quota?: QuotaSpec | undefined;
}

export interface QuotaSpec extends NfsQuota {
  /** This node's name there. */
  readonly host: string;
}

/** File contents, not paths: the data path has no right to read the files. */
export interface TlsSpec {
  /** Undefined: the system's CAs. */
  readonly ca: string | undefined;
  readonly certificate: string | undefined;
  readonly key: string | undefined;
  /** The name in the server's certificate, if it is not issued for the address. */
  readonly serverName: string | undefined;
}

class BadSpec extends Error {
  override readonly name = 'BadSpec';
}

type Fields = Readonly<Record<string, unknown>>;

/** The writer may be another version of the program, after an upgrade. */
export function readMountSpec(value: unknown): MountSpec {
  if (typeof value !== 'object' || value === null) throw new BadSpec('the description of a mount is not an object');
  const fields = value as Fields;
  const { version } = fields;
  if (version !== 1 && version !== 2 && version !== 3)
    throw new BadSpec(`a mount's description has the unknown version ${String(version)}`);
  const addresses = fields['addresses'];
  if (!Array.isArray(addresses) || addresses.length === 0 || !addresses.every((one) => typeof one === 'string'))
    throw invalidField('addresses');
  return {
    version,
    addresses: addresses as unknown as [string, ...string[]],
    port: integer(fields, 'port', 65_535),
    root: text(fields, 'root'),
    connections: integer(fields, 'connections', 16),
    privilegedPorts: flag(fields, 'privilegedPorts'),
    tls: fields['tls'] === undefined ? undefined : readTls(fields['tls']),
    squash: oneOf(fields, 'squash', ['none', 'root', 'all']),
    uid: integer(fields, 'uid', 0xffff_ffff),
    gid: integer(fields, 'gid', 0xffff_ffff),
    softMs: fields['softMs'] === undefined ? undefined : integer(fields, 'softMs', Number.MAX_SAFE_INTEGER),
    readOnly: flag(fields, 'readOnly'),
    sync: fields['sync'] === undefined ? undefined : flag(fields, 'sync'),
    maxRead: integer(fields, 'maxRead', 1024 * 1024),
    maxWrite: integer(fields, 'maxWrite', 1024 * 1024),
    cacheMs: integer(fields, 'cacheMs', Number.MAX_SAFE_INTEGER),
    locks: oneOf(fields, 'locks', ['node', 'refused']),
    checks: version === 1 ? 'kernel' : oneOf(fields, 'checks', ['kernel', 'server']),
    group: fields['group'] === undefined ? undefined : integer(fields, 'group', 0xffff_ffff),
    quota: fields['quota'] === undefined ? undefined : readQuota(fields['quota']),
  };
}

function readTls(value: unknown): TlsSpec {
  if (typeof value !== 'object' || value === null) throw invalidField('tls');
  const fields = value as Fields;
  const optionalText = (name: string): string | undefined =>
    fields[name] === undefined ? undefined : text(fields, name);
  return {
    ca: optionalText('ca'),
    certificate: optionalText('certificate'),
    key: optionalText('key'),
    serverName: optionalText('serverName'),
  };
}

function readQuota(value: unknown): QuotaSpec {
  if (typeof value !== 'object' || value === null) throw invalidField('quota');
  const fields = value as Fields;
  const host = text(fields, 'host');
  // It becomes a file name.
  if (!/^[A-Za-z0-9-]{1,64}$/.test(host)) throw invalidField('quota');
  return { bytes: integer(fields, 'bytes', Number.MAX_SAFE_INTEGER), ledger: text(fields, 'ledger'), host };
}

/** The message omits the value, which may be secret. */
const invalidField = (name: string): BadSpec => new BadSpec(`the field ${name} of a mount's description is invalid`);

function integer(fields: Fields, name: string, max: number): number {
  const value = fields[name];
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0 || value > max) throw invalidField(name);
  return value;
}

function text(fields: Fields, name: string): string {
  const value = fields[name];
  if (typeof value !== 'string') throw invalidField(name);
  return value;
}

function flag(fields: Fields, name: string): boolean {
  const value = fields[name];
  if (typeof value !== 'boolean') throw invalidField(name);
  return value;
}

function oneOf<const T extends string>(fields: Fields, name: string, words: readonly T[]): T {
  const found = words.find((word) => word === fields[name]);
  if (found === undefined) throw invalidField(name);
  return found;
}
