import { readFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join } from 'node:path';
import { isErrno } from '#base/errno.ts';
import { StowageError } from '#core/errors.ts';
import type { NfsConnection, Source } from '#core/model.ts';
import type { MountSpec, TlsSpec } from '#datapath/mount-spec.ts';

type NfsSource = Extract<Source, { kind: 'nfs' }>;

/** How long names and attributes are cached: the longest time until a change by another node is visible. */
const cacheMs = 1_000;

/** The mount spec for the data path. It may contain the private key of a certificate, so send it to the keeper only. */
export async function mountSpecOf({ hosts, way }: NfsSource, instance: string): Promise<MountSpec> {
  const [first, ...others] = way.addresses;
  if (first === undefined) throw new Error('a source without an address');
  const { port, root, connections, squash, uid, gid, readOnly, maxRead, maxWrite, locks } = way;
  const softMs = way.softMs === undefined ? undefined : way.softMs * (1 + (way.retries ?? 0));
  return {
    ...versionedOptions(way),
    addresses: [first, ...others],
    port,
    root,
    connections,
    privilegedPorts: way.sourcePorts === 'privileged',
    tls: way.tls === undefined ? undefined : await readTlsSpec(way.tls, hosts[0]),
    squash,
    uid,
    gid,
    softMs,
    readOnly,
    maxRead,
    maxWrite,
    cacheMs,
    locks,
    group: squash === 'all' ? way.group : undefined,
    quota: way.quota === undefined ? undefined : { ...way.quota, host: instance },
  };
}

/** The oldest version that supports the options: a data path that does not know them must not serve the mount. */
function versionedOptions({ squash, sync }: NfsConnection): Pick<MountSpec, 'version' | 'checks' | 'sync'> {
  // The kernel checks permissions by the user ids of this machine, which mean nothing if all users are a single user on the server.
  const checks = squash === 'all' ? 'server' : 'kernel';
  if (sync === true) return { version: 3, checks, sync };
  return checks === 'server' ? { version: 2, checks } : { version: 1 };
}

async function readTlsSpec({ folder }: NonNullable<NfsConnection['tls']>, host: string): Promise<TlsSpec> {
  const serverName = isIP(host) === 0 ? host : undefined;
  if (folder === undefined) return { ca: undefined, certificate: undefined, key: undefined, serverName };
  const [ca, mount] = await Promise.all([readIfPresent(folder, 'ca.pem'), readKeyPair(folder, 'mount')]);
  // A certificate for mounts only: if there is one, data paths never get the client certificate, which allows everything.
  const { certificate, key } = mount ?? (await readKeyPair(folder, 'client')) ?? {};
  return { ca, certificate, key, serverName };
}

/** Undefined: neither file exists. One without the other is an error; there is no fallback. */
async function readKeyPair(folder: string, name: string): Promise<{ certificate: string; key: string } | undefined> {
  const files = [`${name}.pem`, `${name}.key`];
  const [certificate, key] = await Promise.all(files.map((file) => readIfPresent(folder, file)));
  if (certificate !== undefined && key !== undefined) return { certificate, key };
  if (certificate === undefined && key === undefined) return undefined;
  throw unreadable(join(folder, `${name}.${certificate === undefined ? 'pem' : 'key'}`), undefined);
}

async function readIfPresent(folder: string, name: string): Promise<string | undefined> {
  const path = join(folder, name);
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw unreadable(path, cause);
  }
}

function unreadable(path: string, cause: unknown): StowageError {
  return new StowageError(`the file ${path} for the store's TLS cannot be read`, {
    code: 'denied',
    reason: 'tls-file-unreadable',
    action: "Create the file, or correct its permissions or the store's option tls.",
    cause,
  });
}
