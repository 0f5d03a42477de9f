import { lstat } from 'node:fs/promises';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { Mounter } from '#core/ports.ts';
import { mountFailure } from './errors.ts';
import { type MountEntry, same } from './mountinfo.ts';
import type { Parts } from './parts.ts';
import { located, unlessMissing } from './paths.ts';

export function createBind({ run, readTable, places }: Parts): Mounter['bind'] {
  async function bind(from: string, at: string, how: { readonly readOnly: boolean }, scope: Scope): Promise<void> {
    const origin = await existing(from);
    const place = await existing(at);
    using _held = await places.hold([place], scope.signal);
    const table = await readTable();
    const shown = table.shown(origin);
    const there = table.at(place);
    if (there !== undefined) {
      if (!same(there, shown)) throw occupied(place, there);
      await tightenOrRefuse(place, there, how.readOnly, scope);
      return;
    }
    const through = table.holding(origin);
    if (through?.readOnly === true && !how.readOnly) throw sourceReadOnly(from);
    await refuseMixed(origin, place);
    await mountBind(origin, place, how.readOnly ? readOnlyFlags(through) : undefined, scope);
  }

  /** A crash between the two halves of a read-only bind leaves it writable; the repeat finishes it. */
  async function tightenOrRefuse(place: string, there: MountEntry, readOnly: boolean, scope: Scope): Promise<void> {
    if (there.mountReadOnly === readOnly) return;
    if (readOnly) {
      await tighten(place, readOnlyFlags(there), scope);
      return;
    }
    throw new StowageError(`${place} already shows it, read-only`, {
      code: 'conflict',
      reason: 'mounted-read-only',
      action: `Unmount ${place} first, or ask for it read-only.`,
    });
  }

  async function mountBind(origin: string, place: string, readOnly: string | undefined, scope: Scope): Promise<void> {
    const wanted = readOnly === undefined ? 'bind' : `bind,${readOnly}`;
    try {
      await run('mount', ['-o', wanted, '--', origin, place], scope);
      // util-linux makes it read-only in the same call (since 2.27; in one step since 2.39); others ignore that word.
      if (readOnly !== undefined && (await readTable()).at(place)?.mountReadOnly !== true) {
        await tighten(place, readOnly, scope);
      }
    } catch (cause) {
      if (readOnly !== undefined) await undo(origin, place, scope);
      throw mountFailure(`${origin} could not be mounted at ${place}`, cause);
    }
  }

  async function tighten(place: string, flags: string, scope: Scope): Promise<void> {
    try {
      // With a source, though the kernel ignores it: given the target alone, mount would add what fstab says of it.
      await run('mount', ['-o', `remount,bind,${flags}`, '--', 'none', place], scope);
    } catch (cause) {
      throw mountFailure(`${place} could not be made read-only`, cause);
    }
    if ((await readTable()).at(place)?.mountReadOnly === true) return;
    throw new StowageError(`${place} could not be made read-only`, {
      code: 'internal',
      reason: 'read-only-refused',
      action: 'Use mount of util-linux, which can make a bind mount read-only. Ask: stowage doctor',
    });
  }

  /** Never a writable mount where a read-only one was asked for; so this goes on when the caller has given up. */
  async function undo(origin: string, place: string, scope: Scope): Promise<void> {
    const table = await readTable();
    const there = table.at(place);
    if (there === undefined || !same(there, table.shown(origin))) return;
    const anyway = { ...scope, signal: new AbortController().signal };
    await run('umount', ['--lazy', '--', place], anyway, { deadline: 5_000 }).catch((cause: unknown) => {
      scope.log.error('a mount that should be read-only could not be undone', { at: place, why: String(cause) });
    });
  }

  return bind;
}

async function existing(path: string): Promise<string> {
  const place = await located(path);
  if (place !== undefined) return place;
  throw new StowageError(`${path} does not exist`, {
    code: 'not-found',
    reason: 'path-missing',
    action: 'Give a path that exists.',
  });
}

/** The flags of the mount it is taken from: a remount that leaves one out would take it away. */
function readOnlyFlags(entry: MountEntry | undefined): string {
  const kept = ['nosuid', 'nodev', 'noexec', 'noatime', 'nodiratime', 'relatime', 'nosymfollow'];
  return ['ro', ...kept.filter((flag) => entry?.options.includes(flag))].join(',');
}

async function refuseMixed(origin: string, place: string): Promise<void> {
  const kinds = await Promise.all([origin, place].map(async (path) => unlessMissing(lstat(path))));
  const [from, at] = kinds;
  if (from === undefined || at === undefined) {
    throw new StowageError(`${from === undefined ? origin : place} does not exist`, {
      code: 'not-found',
      reason: 'path-missing',
      action: 'Give a path that exists.',
    });
  }
  if (!from.isSymbolicLink() && !at.isSymbolicLink() && from.isDirectory() === at.isDirectory()) return;
  throw new StowageError(`${origin} cannot be mounted at ${place}: a folder goes onto a folder, a file onto a file`, {
    code: 'conflict',
    reason: 'target-kind',
    action: 'Give a path of the same kind, and no symbolic link.',
  });
}

function occupied(place: string, there: MountEntry): StowageError {
  return new StowageError(`something else is mounted at ${place}: ${there.source} (${there.type})`, {
    code: 'conflict',
    reason: 'mount-occupied',
    action: `Unmount it (umount ${place}), or give another path.`,
  });
}

function sourceReadOnly(from: string): StowageError {
  return new StowageError(`${from} is on a read-only file system and cannot be mounted for writing`, {
    code: 'conflict',
    reason: 'source-read-only',
    action: 'Ask for it read-only.',
  });
}
