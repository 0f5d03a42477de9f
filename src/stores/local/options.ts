import { isAbsolute, normalize } from 'node:path';
import { StowageError } from '#core/errors.ts';
import { quoted } from '#core/names.ts';
import type { LayoutKind } from '../file-store/layout.ts';

export interface LocalOptions {
  readonly root: string;
  readonly layout: LayoutKind;
  readonly uid: number | undefined;
  readonly gid: number | undefined;
  readonly mode: number;
  /** Undefined: xfs, or ext4 for volumes that are too small for xfs. */
  readonly filesystem: 'xfs' | 'ext4' | undefined;
}

export const optionHelp = {
  layout: 'directory (default): a plain directory per volume; image: a file with a file system of its own per volume',
  uid: "numeric owner of a new volume's top directory (default: the user Stowage runs as)",
  gid: "numeric group of a new volume's top directory (default: the group Stowage runs as)",
  mode: "permissions of a new volume's top directory, octal (default: 0755)",
  filesystem: 'for layout=image: xfs or ext4 (default: xfs, and ext4 for volumes below 300 MiB)',
} as const;

function invalid(message: string, action: string): StowageError {
  return new StowageError(message, { code: 'invalid', reason: 'store-option-invalid', action });
}

function oneOf<T extends string>(key: string, value: string | undefined, allowed: readonly T[]): T | undefined {
  if (value === undefined) return undefined;
  const found = allowed.find((a) => a === value);
  if (found !== undefined) return found;
  throw invalid(`${quoted(value)} is not a value for the option ${key}`, `Use one of: ${allowed.join(', ')}.`);
}

function ownerId(key: 'uid' | 'gid', value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  // 2^32-1 means "leave as it is" to chown(2).
  if (/^\d{1,10}$/.test(value) && Number(value) < 2 ** 32 - 1) return Number(value);
  throw invalid(`${quoted(value)} is not a value for the option ${key}`, `Give the number, for example ${key}=1000.`);
}

function fileMode(value: string | undefined): number {
  if (value === undefined) return 0o755;
  if (/^0?[0-7]{3,4}$/.test(value)) return Number.parseInt(value, 8);
  throw invalid(
    `${quoted(value)} is not a value for the option mode`,
    'Give three or four octal digits, for example mode=0770.',
  );
}

function rootOf(uri: string): string {
  const wrong = (why: string): StowageError =>
    invalid(
      `${quoted(uri)} is not the URI of a local store: ${why}`,
      'Write local:// and an absolute path, for example local:///srv/data',
    );
  if (uri.includes('#'))
    throw invalid(
      `${quoted(uri)} has a # in it, where a URI's path ends`,
      'Write a literal # as %23, or leave it out.',
    );
  const encodedPath = /^local:\/\/([^?]*)/.exec(uri)?.[1];
  if (encodedPath === undefined) throw wrong('it does not begin with local://');
  let path: string;
  try {
    path = decodeURIComponent(encodedPath);
  } catch (cause) {
    throw invalid(`${quoted(uri)} has a broken %-escape`, `Write a literal % as %25. (${String(cause)})`);
  }
  if (!isAbsolute(path)) throw wrong('the path must begin with / (three slashes in all)');
  if (/[\0-\x1f]/.test(path)) throw wrong('the path contains control characters');
  const clean = normalize(path);
  return clean.length > 1 && clean.endsWith('/') ? clean.slice(0, -1) : clean;
}

export function parseOptions(uri: string, options: Readonly<Record<string, string>>): LocalOptions {
  const root = rootOf(uri);
  if (root === '/')
    throw invalid(
      'the root of the whole system cannot be a store',
      'Give a directory of its own, for example local:///srv/data',
    );
  const unknown = Object.keys(options).find((key) => !Object.hasOwn(optionHelp, key));
  if (unknown !== undefined) {
    const allowed = Object.keys(optionHelp).join(', ');
    throw invalid(`a local store has no option ${quoted(unknown)}`, `Options of a local store: ${allowed}.`);
  }
  const layout = oneOf('layout', options['layout'], ['directory', 'image']) ?? 'directory';
  const filesystem = oneOf('filesystem', options['filesystem'], ['xfs', 'ext4']);
  if (filesystem !== undefined && layout !== 'image') {
    throw invalid('the option filesystem is only for layout=image', 'Leave it out, or add layout=image.');
  }
  return {
    root,
    layout,
    filesystem,
    uid: ownerId('uid', options['uid']),
    gid: ownerId('gid', options['gid']),
    mode: fileMode(options['mode']),
  };
}
