import { rename, rm } from 'node:fs/promises';
import type { Folders } from '#base/folders.ts';
import type { Log } from '#base/log.ts';
import { type MountTable, readMountTable } from '#clients/mounter/mountinfo.ts';
import { StowageError } from '#core/errors.ts';
import type { Records } from '#core/ports.ts';
import { openRecords } from '#records/sqlite.ts';
import { nodeNameFrom } from './node-name.ts';
import { prepareState, type StateFolder } from './state-folder.ts';

/** The setting with the name of the node that the database belongs to. */
const nodeSetting = 'instance.node';
const maxNamedMounts = 3;

/**
 * An agent's database belongs to one node, whose name is unique in the cluster. If it belongs to another node, it is a copy: a machine
 * created from this one's disk image has the same instance id. It would pass for the other node where only one may write, and would end
 * what belongs to that node's pods. So the database is moved aside, and this node starts with an empty one.
 */
export async function resetDatabaseOfOtherNode(folders: Folders, name: string, log: Log): Promise<void> {
  const node = nodeNameFrom(name);
  const state = await prepareState(folders.state, folders.socket);
  const before = await nodeBefore(state, node);
  if (before === undefined) return;
  const backupPath = `${state.database}.${before}`;
  await rename(state.database, backupPath);
  for (const ending of ['-wal', '-shm', '-journal']) await rm(`${state.database}${ending}`, { force: true });
  log.warn('the database belongs to another node: starting with an empty database', {
    node,
    before,
    aside: backupPath,
  });
}

/** Undefined: it is the same node, which is now recorded. */
async function nodeBefore(state: StateFolder, node: string): Promise<string | undefined> {
  const records = openRecords(state.database);
  try {
    const before = records.settings.get(nodeSetting);
    if (before === undefined) records.settings.set(nodeSetting, node);
    if (before === undefined || before === node) return undefined;
    const left = remainingMounts(state, records, await readMountTable());
    if (left.length > 0) throw stillMounted(before, node, left);
    return before;
  } finally {
    records.close();
  }
}

/** A cloned machine has just booted and has no mounts. A renamed one may still serve pods. */
function remainingMounts(
  { mounts }: StateFolder,
  { settings, mounts: recorded }: Records,
  table: MountTable,
): string[] {
  const targets = new Set(recorded.list().map(({ target }) => target));
  const mark = `stowage:${settings.get('instance')}:`;
  const isOurs = ({ at, source }: MountTable['entries'][number]): boolean =>
    at.startsWith(`${mounts}/`) || targets.has(at) || source.startsWith(mark);
  return table.entries.filter(isOurs).map(({ at }) => at);
}

function stillMounted(before: string, node: string, left: readonly string[]): StowageError {
  const some = left.slice(0, maxNamedMounts).join(', ') + (left.length > maxNamedMounts ? ', …' : '');
  return new StowageError(`this machine was node ${before}, and volumes are still mounted for that node: ${some}`, {
    code: 'conflict',
    reason: 'node-name-changed',
    action: `Rename the node back to ${before}, or reboot the machine: Stowage then starts as ${node} with an empty database.`,
  });
}
