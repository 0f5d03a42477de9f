import { chown, mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { dirname, extname, join } from 'node:path';
import type { Clock } from '#base/clock.ts';
import { enterNetwork } from '#base/linux/network.ts';
import type { Log } from '#base/log.ts';
import { dataPathFlags } from '#keeper/node-flags.ts';
import { startKeeper } from '#keeper/start.ts';
import { searchPath } from '../mounter/tools.ts';
import { type KeeperRights, keeperRights } from './rights.ts';
import { keeperUser } from './user.ts';

/** What makes a mount need another keeper than the rest: where its connections start, and with which right. */
export interface KeeperKind {
  readonly network: string | undefined;
  readonly privilegedPorts: boolean;
}

/** Starts keepers, each in a folder of its own. */
export interface Starting {
  start(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void>;
  /** Another one in the place of one that was started before. */
  again(name: string, signal: AbortSignal): Promise<void>;
  socketOf(name: string): string;
}

export interface StartingOptions {
  readonly clock: Clock;
  readonly log: Log;
  readonly folder: string;
  readonly version: string;
}

/** Beside this file, in the sources as in the bundle. */
const isSource = extname(import.meta.filename) === '.ts';
export const program = isSource
  ? join(import.meta.dirname, '..', '..', 'datapath', 'main.ts')
  : join(import.meta.dirname, 'data-path.mjs');

export function createStarting({ clock, log, folder, version }: StartingOptions): Starting {
  const told = new Set<string>();
  const socketOf = (name: string): string => join(folder, name, 'sock');
  const kindFile = (name: string): string => join(folder, `${name}.json`);

  async function rightsFor({ privilegedPorts }: KeeperKind): Promise<KeeperRights> {
    const rights = await keeperRights({
      ...{ user: await keeperUser(folder), privilegedPorts },
      paths: [folder, program, process.execPath],
    });
    if (rights.why !== undefined) tellOnce('the data path runs as root, without rights', { why: rights.why });
    if (rights.missing.length > 0)
      tellOnce('the data path is not protected when memory is short', { missing: rights.missing.join(', ') });
    return rights;
  }

  function tellOnce(message: string, facts: Readonly<Record<string, string>>): void {
    const all = JSON.stringify([message, facts]);
    if (told.has(all)) return;
    told.add(all);
    log.info(message, facts);
  }

  async function start(name: string, kind: KeeperKind, signal: AbortSignal): Promise<void> {
    await mkdir(folder, { recursive: true, mode: 0o711 });
    const rights = await rightsFor(kind);
    const own = dirname(socketOf(name));
    await mkdir(own, { recursive: true, mode: 0o700 });
    await chown(own, rights.user, rights.user);
    // Beside the keeper's own folder, where it cannot change it.
    const draft = `${kindFile(name)}.new`;
    await writeFile(draft, JSON.stringify(kind), { mode: 0o600 });
    await rename(draft, kindFile(name));
    const there = kind.network === undefined ? [] : await enterNetwork(kind.network);
    await startKeeper(
      {
        ...{ clock, enter: [...there, ...rights.enter], socket: socketOf(name), program, flags: dataPathFlags },
        log: join(own, 'log'),
        env: { PATH: searchPath(), STOWAGE_VERSION: version },
      },
      signal,
    );
  }

  return {
    ...{ start, socketOf },
    again: async (name, signal) => {
      const kind = JSON.parse(await readFile(kindFile(name), 'utf8')) as KeeperKind;
      await start(name, kind, signal);
    },
  };
}
