import { deepEqual, equal, ok } from 'node:assert/strict';
import { lstatSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { type FileHandle, stability } from '#wire/nfs3/structures.ts';
import { pick } from '../crash/seeded-random.ts';

/**
 * Two clients take turns at changing names and data in one directory. The test compares each change with a model, on
 * the server's disk. Each client soon changes what the other one has changed, so that a call that runs twice or late
 * has a visible effect.
 */
export interface WorkloadParts {
  readonly clients: readonly NfsClient[];
  readonly directory: FileHandle;
  readonly folder: string;
  readonly steps: number;
  readonly random: () => number;
  /** Called before each change with the number of changes left. */
  readonly onChange?: (left: number) => void;
}

/** A file or directory that has one of two names, or does not exist. */
interface Slot {
  readonly names: readonly [string, string];
  name: string | undefined;
  handle: FileHandle | undefined;
  /** Undefined: a directory. */
  data: Buffer | undefined;
}

interface Change {
  readonly client: NfsClient;
  readonly directory: FileHandle;
  readonly random: () => number;
  readonly slot: Slot;
}

const slotCount = 12;
const workersPerClient = 3;
const maxFileBytes = 48 * 1024;
const noDeadline = { deadlineMs: Number.POSITIVE_INFINITY };

const randomBelow = (random: () => number, end: number): number => Math.floor(random() * end);
const anyName = ({ slot, random }: Change): string => slot.names[randomBelow(random, 2)] ?? slot.names[0];
const otherName = ({ names, name }: Slot): string => (name === names[0] ? names[1] : names[0]);

function anyBytes(random: () => number): Buffer {
  return Buffer.alloc(1 + randomBelow(random, maxFileBytes / 4), `${random()} `);
}

async function writeAt({ client, slot, random }: Change, offset: number): Promise<void> {
  const [handle, before] = [slot.handle as FileHandle, slot.data as Buffer];
  const bytes = anyBytes(random);
  const isStable = random() < 0.5;
  for (;;) {
    const stable = isStable ? stability.fileSync : stability.unstable;
    const { count, verifier } = await client.write(handle, offset, bytes, stable, noDeadline);
    equal(count, bytes.length);
    // The server has restarted since the write and may have lost the data, because the verifier has changed.
    if (isStable || (await client.commit(handle, 0, 0, noDeadline)).verifier === verifier) break;
  }
  const data = Buffer.alloc(Math.max(before.length, offset + bytes.length));
  before.copy(data);
  bytes.copy(data, offset);
  slot.data = data;
}

async function createFile(change: Change): Promise<void> {
  const { client, directory, slot, random } = change;
  const name = anyName(change);
  const guarded = { mode: 'guarded', set: { mode: 0o640 } } as const;
  const exclusive = { mode: 'exclusive', verifier: BigInt(randomBelow(random, 2 ** 52)) } as const;
  const { handle } = await client.create(directory, name, random() < 0.5 ? guarded : exclusive, noDeadline);
  Object.assign(slot, { name, handle, data: Buffer.alloc(0) });
  await writeAt(change, 0);
}

async function createDirectory(change: Change): Promise<void> {
  const name = anyName(change);
  const { handle } = await change.client.mkdir(change.directory, name, { mode: 0o750 }, noDeadline);
  Object.assign(change.slot, { name, handle, data: undefined });
}

async function truncate({ client, slot, random }: Change): Promise<void> {
  const data = slot.data as Buffer;
  const size = randomBelow(random, data.length + 1);
  await client.setattr(slot.handle as FileHandle, { size }, noDeadline);
  slot.data = data.subarray(0, size);
}

async function rename({ client, directory, slot }: Change): Promise<void> {
  const [name, newName] = [slot.name as string, otherName(slot)];
  await client.rename({ directory, name }, { directory, name: newName }, { ...noDeadline, expected: slot.handle });
  slot.name = newName;
}

async function linkAndRemove({ client, directory, slot }: Change): Promise<void> {
  const [name, newName] = [slot.name as string, otherName(slot)];
  await client.link(slot.handle as FileHandle, { directory, name: newName }, noDeadline);
  await client.remove(directory, name, { ...noDeadline, expected: slot.handle });
  slot.name = newName;
}

async function remove({ client, directory, slot }: Change): Promise<void> {
  const removeOptions = { ...noDeadline, expected: slot.handle };
  if (slot.data === undefined) await client.rmdir(directory, slot.name as string, removeOptions);
  else await client.remove(directory, slot.name as string, removeOptions);
  Object.assign(slot, { name: undefined, handle: undefined, data: undefined });
}

const writeAnywhere = (change: Change): Promise<void> =>
  writeAt(change, randomBelow(change.random, Math.min(change.slot.data?.length ?? 0, (maxFileBytes * 3) / 4) + 1));

const changesWithoutEntry = [createFile, createFile, createDirectory] as const;
const changesOfFile = [writeAnywhere, writeAnywhere, truncate, rename, linkAndRemove, remove] as const;
const changesOfDirectory = [rename, remove] as const;

function changesFor(slot: Slot): readonly ((change: Change) => Promise<void>)[] {
  if (slot.name === undefined) return changesWithoutEntry;
  return slot.data === undefined ? changesOfDirectory : changesOfFile;
}

function check({ names, name, data }: Slot, folder: string): void {
  const found = readdirSync(folder).filter((entry) => names.includes(entry));
  deepEqual(found, name === undefined ? [] : [name]);
  if (name === undefined) return;
  const path = join(folder, name);
  if (data === undefined) ok(lstatSync(path).isDirectory(), `${name} is not a directory`);
  else ok(readFileSync(path).equals(data), `${name} has other contents`);
}

export async function runWorkload({
  clients,
  directory,
  folder,
  steps,
  random,
  onChange,
}: WorkloadParts): Promise<void> {
  const free = Array.from({ length: slotCount }, (_, i): Slot => {
    const names = [`slot-${i}-a`, `slot-${i}-b`] as const;
    return { names, name: undefined, handle: undefined, data: undefined };
  });
  const slots = [...free];
  let left = steps;
  async function worker(client: NfsClient): Promise<void> {
    while (left-- > 0) {
      onChange?.(left);
      const slot = pick(free, random) as Slot;
      free.splice(free.indexOf(slot), 1);
      const work = pick(changesFor(slot), random) ?? createFile;
      try {
        check(slot, folder);
        await work({ client, directory, random, slot });
        check(slot, folder);
      } catch (cause) {
        throw new Error(`${work.name} of ${slot.names[0]}, with ${left} steps left`, { cause });
      }
      free.push(slot);
    }
  }
  const workers = clients.flatMap((client) => Array.from({ length: workersPerClient }, () => worker(client)));
  await Promise.all(workers);
  for (const slot of slots) check(slot, folder);
}
