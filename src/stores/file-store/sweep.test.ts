import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { volumeName } from '#core/names.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { createProcesses, openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { RpcError } from '#wire/nfs3/index.ts';
import type { FileStore } from './verbs.ts';

// On a shared store an empty record reserves a name for a volume that is being created, adopted or moved there.
// A host that dies leaves it behind, beside existing data.

const volumeNameOf = volumeName;
const spec = (name: string, instance: string): VolumeSpec =>
  volumeSpec(name, { requestId: `${instance} ${name}`, instance });
const passThrough: CallInterceptor = ({ make }) => make();

let folder: string;
beforeEach(() => {
  folder = quickFolder('sweep');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

const read = (...path: readonly string[]): string => readFileSync(join(folder, ...path), 'utf8');
const rootEntries = (): string[] => readdirSync(folder).filter((entry) => entry !== '.stowage');

function plant(name: string): void {
  mkdirSync(join(folder, name));
  writeFileSync(join(folder, name, 'file'), 'planted');
}

interface Host {
  readonly store: FileStore;
  /** Polls like a host that stays up for a while. */
  sweepForAMinute(): Promise<void>;
}

const processes = createProcesses();

async function startHost(instance: string, hook: CallInterceptor = passThrough): Promise<Host> {
  const clock = shortWaitClock(systemClock());
  const kind = createNfsStoreKind(clock, interceptCalls(connectToDisk(folder), hook));
  const store = await openNfs({ uri: 'nfs://nowhere/export', instance, kind, marks: processes(instance) });
  return {
    store,
    sweepForAMinute: async () => {
      for (const ms of [61_000, 1_500, 1_500, 1_500]) {
        await store.housekeeping.sweep(scope);
        clock.pass(ms);
      }
      await store.housekeeping.sweep(scope);
    },
  };
}

/** Runs the work, and kills the host after the server has done that call. */
async function killAfter(
  isLast: (procedure: string, text: string) => boolean,
  work: (store: FileStore) => Promise<unknown>,
): Promise<void> {
  let isDead = false;
  const { store } = await startHost('one', async ({ procedure, args, make }) => {
    const killedError = (): RpcError => new RpcError('the process was killed', { failure: 'closed', maybeDone: true });
    if (isDead) throw killedError();
    const answer = await make();
    isDead = isLast(procedure, inspect(args));
    if (isDead) throw killedError();
    return answer;
  });
  await expect(work(store)).rejects.toThrow();
  expect(isDead).toBe(true);
}

describe('a name reserved for data that are being adopted', () => {
  const dieWhileAdopting = async (): Promise<void> => {
    plant('d');
    await killAfter(
      (procedure, text) => procedure === 'create' && text.includes("'d.meta'"),
      (store) => store.adoption.adopt(volumeNameOf('d'), spec('d', 'one'), scope),
    );
    expect([rootEntries(), read('d.meta')]).toEqual([['d', 'd.meta'], '']);
  };

  test('is released by its host when that host comes back', async () => {
    await dieWhileAdopting();
    const restartedHost = await startHost('one');
    await restartedHost.store.housekeeping.sweep(scope);
    expect([rootEntries(), read('d', 'file')]).toEqual([['d'], 'planted']);
  });

  test('is released by another host only after its host has been silent for long', async () => {
    await dieWhileAdopting();
    const other = await startHost('two');
    for (let i = 0; i < 3; i++) await other.store.housekeeping.sweep(scope);
    expect(rootEntries()).toEqual(['d', 'd.meta']);
    await other.sweepForAMinute();
    expect([rootEntries(), read('d', 'file')]).toEqual([['d'], 'planted']);
  });
});

describe.each<[string, (store: FileStore, volume: Volume) => Promise<unknown>]>([
  ['renamed', (store, volume) => store.rename(volume, volumeNameOf('n'), scope)],
  [
    'restored',
    async (store, volume) => {
      await store.trash.put(volume, keptForAWeek(1), scope);
      await store.trash.restore(volume.id, volumeNameOf('n'), scope);
    },
  ],
])('a name to which a volume was being %s when its host was killed after moving the data', (_what, move) => {
  let volume: Volume;
  beforeEach(async () => {
    volume = await (await startHost('one')).store.create(spec('a', 'one'), scope);
    writeFileSync(join(folder, 'a', 'file'), volume.id);
    await killAfter(
      (procedure, text) => procedure === 'rename' && text.includes("name: 'n'"),
      (store) => move(store, volume),
    );
    expect([read('n.meta'), read('n', 'file')]).toEqual(['', volume.id]);
  });

  test('is not released by other hosts, however long its host is silent, and that host finishes when it comes back', async () => {
    const other = await startHost('two');
    await other.sweepForAMinute();
    expect(read('n.meta')).toBe('');
    const restartedHost = await startHost('one');
    await restartedHost.store.housekeeping.sweep(scope);
    expect((await restartedHost.store.get(volumeNameOf('n'), scope))?.volume.id).toBe(volume.id);
    expect([rootEntries(), read('n', 'file')]).toEqual([['n', 'n.meta'], volume.id]);
  });

  test('keeps the data from being adopted as another volume', async () => {
    const other = await startHost('two');
    await other.sweepForAMinute();
    const adopted = other.store.adoption.adopt(volumeNameOf('n'), spec('n', 'two'), scope);
    await expect(adopted).rejects.toMatchObject({ code: 'exists', reason: 'volume-exists' });
  });
});
