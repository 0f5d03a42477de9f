import { open } from 'node:fs/promises';
import { homedir } from 'node:os';
import { resolve } from 'node:path';
import { errnoOf } from '#base/errno.ts';
import { defaultFolders } from '#base/folders.ts';
import { StowageError } from '#core/errors.ts';
import { type ClusterAddress, clusterAddressText } from './cluster-connection.ts';
import type { Io } from './io.ts';
import { invalid } from './problem.ts';
import { shellWord } from './text.ts';

export interface ConnectionOptions {
  readonly socket?: string;
  readonly url?: string;
  readonly tokenFile?: string;
}

/** The server's address, with the credentials for it. */
export type ServerAddress =
  | { readonly kind: 'socket'; readonly path: string }
  | { readonly kind: 'url'; readonly url: URL; readonly token: string | undefined }
  | ClusterAddress;

export function addressText(where: ServerAddress): string {
  switch (where.kind) {
    case 'socket':
      return where.path;
    case 'url':
      return where.url.origin;
    case 'cluster':
      return clusterAddressText(where);
    default:
      return where satisfies never;
  }
}

/** Options have precedence over the environment, and there STOWAGE_URL over STOWAGE_SOCKET. */
export async function findServer(
  options: ConnectionOptions,
  io: Io,
  warn: (text: string) => void,
): Promise<ServerAddress> {
  if (options.url !== undefined && options.socket !== undefined) {
    throw invalid('--url and --socket are mutually exclusive', 'connection-ambiguous', 'Specify only one of them.');
  }
  const url = options.url ?? (options.socket === undefined ? io.env['STOWAGE_URL'] || undefined : undefined);
  if (url === undefined) return { kind: 'socket', path: options.socket ?? defaultSocket(io.env) };
  const address = parseUrl(url);
  const token = options.tokenFile === undefined ? io.env['STOWAGE_TOKEN'] : await readToken(options.tokenFile, warn);
  if (token !== undefined && token !== '' && !/^[\x21-\x7e]+$/.test(token)) {
    throw invalid(
      'the token contains invalid characters',
      'token-malformed',
      'Copy it again, without spaces or line breaks.',
    );
  }
  if (token && address.protocol === 'http:' && !isLoopback(address.hostname)) {
    warn(`the token is sent to ${address.host} unencrypted; use https or the Unix socket`);
  }
  return { kind: 'url', url: address, token: token || undefined };
}

/** The socket if no option names one. */
function defaultSocket(env: Io['env']): string {
  const defaultPath = (): string =>
    defaultFolders({ root: process.getuid?.() === 0, home: env['HOME'] || homedir(), env }).socket;
  return env['STOWAGE_SOCKET'] || defaultPath();
}

/** The option that makes `stowage` use this socket; empty if it is the default. */
export const socketOptionFor = (socket: string, env: Io['env']): string =>
  !env['STOWAGE_URL'] && resolve(defaultSocket(env)) === socket ? '' : ` --socket ${shellWord(socket)}`;

const isLoopback = (host: string): boolean => host === 'localhost' || host === '[::1]' || /^127\./.test(host);

function parseUrl(text: string): URL {
  const url = URL.parse(text);
  if (url === null || !['http:', 'https:'].includes(url.protocol)) {
    throw invalid(
      'the address of the server is not an http or https URL',
      'url-invalid',
      'Use a URL such as --url http://127.0.0.1:7878',
    );
  }
  if (url.username !== '' || url.password !== '') {
    throw invalid(
      'the address of the server contains a user name or password',
      'url-credentials',
      'Remove them, and pass a token with STOWAGE_TOKEN or --token-file.',
    );
  }
  return url;
}

/** Tokens are not options themselves, since every user of the machine can read command lines. */
async function readToken(file: string, warn: (text: string) => void): Promise<string> {
  try {
    await using handle = await open(file, 'r');
    const { mode } = await handle.stat();
    if ((mode & 0o004) !== 0) warn(`${file} is readable by every user; run: chmod 600 ${file}`);
    const { bytesRead, buffer } = await handle.read(Buffer.alloc(4096), 0, 4096, null);
    return buffer.toString('utf8', 0, bytesRead).trim();
  } catch (cause) {
    const why = errnoOf(cause) ?? 'unknown';
    throw new StowageError(`cannot read the token file ${file} (${why})`, {
      code: why === 'EACCES' ? 'denied' : 'invalid',
      reason: 'token-file',
      action: 'Pass a file that contains one token; create a token with: stowage token create',
      cause,
    });
  }
}
