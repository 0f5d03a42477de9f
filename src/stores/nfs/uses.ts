import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { NodeName, SeenUse, Use, User, VolumeId } from '#core/model.ts';
import { quoted } from '#core/names.ts';
import type { Uses } from '#core/ports.ts';
import { errno, isErrno, isFull, UnfitFile } from '../shelf/files.ts';
import { isObject } from '../shelf/meta.ts';
import type { Parts } from '../shelf/parts.ts';
import type { NfsPlace } from './place.ts';

/** A host that has not renewed its record for so long, by the server's clock, is silent. */
export const staleMs = 5 * 60_000;
const formatVersion = 1;
const recordLimit = 64 * 1024;
const mostUsers = 1000;
/** How often the folder can vanish under us. */
const mostAttempts = 16;
const pauseMs = 20;
/** Holds the id of the one host that may write. No host can have this id. */
const writerFile = '.writer';

const isHostId = (text: string): boolean => /^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/.test(text);
const kinds: readonly string[] = ['path', 'container', 'pod'] satisfies User['kind'][];

/** Use records: a file per volume and host, rewritten while there are users there. */
export function createUses({ during, clock }: Parts, place: NfsPlace): Uses {
  const { files } = place;
  const folderOf = (id: VolumeId): string => place.own('users', id);
  const writerOf = (id: VolumeId): string => `${folderOf(id)}/${writerFile}`;

  function recordOf(id: VolumeId, host: string): string {
    if (!isHostId(host)) throw badHost(host);
    return `${folderOf(id)}/${host}`;
  }

  async function removeFolder(id: VolumeId): Promise<void> {
    await files.rmdir(folderOf(id)).catch((cause: unknown) => {
      if (!isErrno(cause, 'ENOENT', 'ENOTEMPTY', 'EEXIST', 'EIO')) throw cause;
    });
  }

  async function writer(id: VolumeId): Promise<string | undefined> {
    try {
      return (await files.read(writerOf(id), recordLimit)).toString('utf8');
    } catch (cause) {
      if (errno(cause) === 'ENOENT') return undefined;
      throw cause;
    }
  }

  /** The server's time, from a file of our own that it has just written. Undefined: it has no room for one. */
  async function now(): Promise<number | undefined> {
    const path = place.scratch();
    try {
      const told = await files.write(path, '.');
      return told === 0 ? ((await files.attributes(path))?.mtime ?? 0) * 1000 : told;
    } catch (cause) {
      if (!isFull(cause)) throw cause;
      return undefined;
    } finally {
      await files.unlink(path).catch(() => false);
    }
  }

  /** A host that leaves may remove the folder that another has just found or made. */
  async function inFolder(id: VolumeId, signal: AbortSignal, work: () => Promise<unknown>): Promise<void> {
    for (let again = 1; ; again++) {
      let isThere = false;
      try {
        await files.makeFolder(folderOf(id));
        isThere = true;
        await work();
        return;
      } catch (cause) {
        const isRemoved = isErrno(cause, 'ENOENT', 'ESTALE') || (!isThere && isErrno(cause, 'EEXIST'));
        if (again >= mostAttempts || !isRemoved) throw cause;
      }
      await clock.sleep(Math.random() * pauseMs, signal);
    }
  }

  async function read(id: VolumeId, host: string, time: number | undefined): Promise<SeenUse | undefined> {
    const path = recordOf(id, host);
    const found = await files.attributes(path);
    if (found === undefined) return undefined;
    const renewedAt = found.mtime * 1000 + Math.floor(found.mtimeNs / 1e6);
    const seen = { renewedAt, stale: time !== undefined && time - renewedAt > staleMs };
    try {
      return { ...parse(host, JSON.parse((await files.read(path, recordLimit)).toString('utf8'))), ...seen };
    } catch (cause) {
      if (errno(cause) === 'ENOENT') return undefined;
      const isUnfit = cause instanceof SyntaxError || cause instanceof UnfitFile;
      if (!isUnfit && !isErrno(cause, 'EACCES', 'EPERM', 'EIO')) throw cause;
      // Whoever it is uses the volume; a record that cannot be read is no permission to destroy it.
      return { ...unreadable(host), ...seen };
    }
  }

  return {
    put: (id, use, scope) =>
      during(`recording that ${use.node} uses ${id}`, [], scope, async () => {
        const path = recordOf(id, use.host);
        const fresh = place.scratch();
        await files.writeNew(fresh, encode(use));
        await inFolder(id, scope.signal, () => files.rename(fresh, path));
      }),
    remove: (id, host, scope) =>
      during(`recording that ${host} no longer uses ${id}`, [], scope, async () => {
        await absentIsFine(files.unlink(recordOf(id, host)));
        if ((await absentIsFine(writer(id))) === host) await files.unlink(writerOf(id));
        await removeFolder(id);
      }),
    list: (id, scope) =>
      during(`looking who uses ${id}`, [], scope, async () => {
        const hosts = (await absentIsFine(files.names(folderOf(id))))?.filter(isHostId) ?? [];
        if (hosts.length === 0) return [];
        const time = await now();
        const uses = await Promise.all(hosts.map((host) => read(id, host, time)));
        return uses.filter((use) => use !== undefined);
      }),
    takeWriter: (id, host, scope) => takeWriter(id, host, scope),
    dropWriter: (id, host, scope) =>
      during(`giving up writing to ${id}`, [id], scope, async () => {
        if ((await absentIsFine(writer(id))) === host) await files.unlink(writerOf(id));
        await removeFolder(id);
      }),
  };

  function takeWriter(id: VolumeId, host: string, scope: Scope): Promise<void> {
    return during(`becoming the one who writes to ${id}`, [id], scope, async () => {
      recordOf(id, host);
      // Held against other hosts by `during`, so an empty one was left by a crash.
      if ((await writer(id)) === '') await files.unlink(writerOf(id));
      try {
        await inFolder(id, scope.signal, () => files.writeNew(writerOf(id), host));
      } catch (cause) {
        if (!isErrno(cause, 'EEXIST')) throw cause;
        const holder = await writer(id);
        if (holder !== host) throw writtenElsewhere(id, holder ?? 'another host');
      }
    });
  }
}

async function absentIsFine<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (cause) {
    if (isErrno(cause, 'ENOENT')) return undefined;
    throw cause;
  }
}

/** Users that do not fit are left out: that the host uses the volume is what counts. */
function encode({ host, node, users }: Use): string {
  for (let most = mostUsers; ; most = Math.floor(most / 2)) {
    const shown = users.slice(0, most).map(({ kind, name }) => ({ kind, name }));
    const text = `${JSON.stringify({ version: formatVersion, host, node, users: shown })}\n`;
    if (Buffer.byteLength(text) <= recordLimit || shown.length === 0) return text;
  }
}

function parse(host: string, json: unknown): Use {
  if (!isObject(json) || typeof json['node'] !== 'string' || !Array.isArray(json['users'])) return unreadable(host);
  const users = json['users'].slice(0, mostUsers).filter(isUser);
  return { host, node: json['node'] as NodeName, users };
}

const unreadable = (host: string): Use => ({ host, node: host as NodeName, users: [] });

const isUser = (value: unknown): value is Pick<User, 'kind' | 'name'> =>
  isObject(value) && kinds.includes(String(value['kind'])) && typeof value['name'] === 'string';

function badHost(host: string): StowageError {
  return new StowageError(`${quoted(host)} is not the id of a host`, {
    code: 'invalid',
    reason: 'host-id-invalid',
    action: 'Use the id that stowage volume show gives.',
  });
}

function writtenElsewhere(id: VolumeId, host: string): StowageError {
  return new StowageError(`volume ${id} is written by host ${host}, and only one may`, {
    code: 'in-use',
    reason: 'volume-written-elsewhere',
    action: 'Stop using it there first. If that host is gone for good, have an administrator break its record.',
  });
}
