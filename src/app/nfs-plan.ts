import { createHash } from 'node:crypto';
import { access, constants, realpath, stat } from 'node:fs/promises';
import { isIP } from 'node:net';
import { join, resolve } from 'node:path';
import { makeFolders } from '#base/make-folders.ts';
import type { NfsServeOptions } from '#cli/io.ts';
import { createMayConnect } from '#wire/nfs3/server/networks.ts';
import {
  noDirectory,
  openToAll,
  stateExported,
  stateUnusable,
  wrongNetwork,
  wrongPath,
  wrongPlatform,
} from './nfs-server-errors.ts';
import { readTls, type ServedTls } from './nfs-tls.ts';
import { isWithin } from './store-overlaps.ts';

/** The server's settings, all validated before it starts. */
export interface NfsPlan {
  readonly directory: string;
  readonly state: string;
  readonly host: string;
  readonly port: number;
  readonly path: string;
  readonly networks: readonly string[];
  /** Admit only processes of our own user and of root on this machine. */
  readonly isOwnOnly: boolean;
  readonly squash: 'root' | 'all' | 'none';
  readonly anonymous: { readonly uid: number; readonly gid: number };
  readonly tls: ServedTls | undefined;
}

const nobodyId = 65_534;
/** All addresses of this machine, IPv4 and IPv6. */
export const allAddresses = '::';

/** `states`: the folder that contains a state folder for each exported directory. */
export async function planNfsServer(options: NfsServeOptions, states: string): Promise<NfsPlan> {
  if (process.platform !== 'linux') throw wrongPlatform();
  const directory = await requireDirectory(resolve(options.directory));
  const path = exportName(options.path ?? '/export');
  const isOwnOnly = options.allow.length === 0 && options.tlsCa === undefined;
  const host = chooseHost(options);
  const tls = await readTls(options);
  return {
    directory,
    host,
    path,
    isOwnOnly,
    tls,
    networks: options.allow,
    port: options.port ?? 2049,
    state: await prepareStateFolder(resolve(options.state ?? stateFor(states, directory)), directory),
    // Root on this machine is not restricted anyway, and no other user can connect.
    squash: options.squash ?? (isOwnOnly ? 'none' : 'root'),
    anonymous: { uid: options.anonUid ?? nobodyId, gid: options.anonGid ?? nobodyId },
  };
}

async function requireDirectory(wanted: string): Promise<string> {
  try {
    const path = await realpath(wanted);
    if (!(await stat(path)).isDirectory()) throw new Error('not a directory');
    await access(path, constants.R_OK | constants.X_OK);
    return path;
  } catch (cause) {
    throw noDirectory(wanted, cause);
  }
}

function exportName(path: string): string {
  const parts = path.split('/').filter((part) => part !== '');
  const isGood = path.startsWith('/') && !parts.some((part) => part === '.' || part === '..' || part.includes('\0'));
  if (!isGood || Buffer.byteLength(path) > 1024) throw wrongPath(path);
  return `/${parts.join('/')}`;
}

const isLoopback6 = (address: string): boolean => address === '::1' || address === '::1/128';
const isLoopback = (address: string): boolean =>
  address === 'localhost' ||
  isLoopback6(address) ||
  (isIP(address.replace(/\/.*$/, '')) === 4 && /^127\./.test(address));

/** Listens on loopback only, unless the options say who may connect from other machines. */
function chooseHost({ host, allow, tlsCa }: NfsServeOptions): string {
  try {
    createMayConnect(allow);
  } catch (cause) {
    throw wrongNetwork(cause);
  }
  if (host === undefined) return hostFor(allow);
  if (!isLoopback(host) && allow.length === 0 && tlsCa === undefined) throw openToAll(host);
  return host;
}

/** The narrowest address for these networks. No single loopback address serves both IPv4 and IPv6. */
function hostFor(allow: readonly string[]): string {
  if (!allow.every(isLoopback)) return allAddresses;
  if (!allow.some(isLoopback6)) return '127.0.0.1';
  return allow.every(isLoopback6) ? '::1' : allAddresses;
}

/** One for each directory: a client that knows the file handles of one directory must not be able to guess those of another. */
function stateFor(states: string, directory: string): string {
  return join(states, createHash('sha256').update(directory).digest('hex').slice(0, 16));
}

const isInside = (state: string, directory: string): boolean => state === directory || isWithin(state, directory);

async function prepareStateFolder(wanted: string, directory: string): Promise<string> {
  // Before creating the folder inside the directory, and again with symbolic links resolved.
  if (isInside(wanted, directory)) throw stateExported(wanted, directory);
  try {
    await makeFolders(wanted, 0o700);
    await access(wanted, constants.W_OK | constants.X_OK);
  } catch (cause) {
    throw stateUnusable(wanted, cause);
  }
  const state = await realpath(wanted);
  if (isInside(state, directory)) throw stateExported(state, directory);
  return state;
}
