import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { scope } from '#testing/contracts/store.ts';
import { connectToDisk } from '#testing/fakes/nfs-on-disk.ts';
import { quickFolder } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/index.ts';
import type { FileStore } from '../file-store/verbs.ts';

// Other hosts take over a lock that has not changed for two minutes. So a verb must stop 30 s after its lock was taken, however often
// it repeats its work, and however late it begins.

let folder: string;
beforeEach(() => {
  folder = quickFolder('hold-limit');
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
});

interface Host {
  readonly store: FileStore;
  readonly clock: ReturnType<typeof shortWaitClock>;
  hook: CallInterceptor;
}

async function startHost(): Promise<Host> {
  const clock = shortWaitClock(systemClock());
  const host = { clock, hook: (({ make }) => make()) as CallInterceptor };
  const kind = createNfsStoreKind(
    clock,
    interceptCalls(connectToDisk(folder), (call) => host.hook(call)),
  );
  return Object.assign(host, { store: await openNfs({ uri: 'nfs://nowhere/export', kind }) });
}

/** Denies new files with NOSPC three times, and advances the clock each time. */
function denyNewFiles(host: Host, passMs: number): () => number {
  let refusals = 0;
  host.hook = ({ procedure, args, make }) => {
    // Lock files are named by the volume's id. Allow those.
    if (procedure !== 'create' || String(args[1]).startsWith('sv1-')) return make();
    refusals++;
    host.clock.pass(passMs);
    return refusals > 3 ? make() : Promise.reject(new NfsError('create', nfsStatus.NOSPC, false));
  };
  return () => refusals;
}

describe('the limit of a verb on a shared store', () => {
  test('does not restart with each piece of the reserve that is removed', async () => {
    const host = await startHost();
    const volume = await host.store.create(volumeSpec('a'), scope);
    await host.store.housekeeping.reclaim(scope);
    expect(readdirSync(join(folder, '.stowage', 'reserve'))).toHaveLength(8);
    const refusals = denyNewFiles(host, 20_000);
    await expect(host.store.trash.put(volume, keptForAWeek(1), scope)).rejects.toMatchObject({ code: 'deadline' });
    expect(refusals()).toBeGreaterThan(1);
    expect(existsSync(join(folder, 'a'))).toBe(true);
    expect(await host.store.trash.list(scope)).toEqual([]);
  });

  test('lets a verb retry as often as it needs within that time', async () => {
    const host = await startHost();
    const volume = await host.store.create(volumeSpec('a'), scope);
    await host.store.housekeeping.reclaim(scope);
    const refusals = denyNewFiles(host, 1_000);
    await host.store.trash.put(volume, keptForAWeek(1), scope);
    expect(refusals()).toBe(4);
    expect(existsSync(join(folder, 'a'))).toBe(false);
  });

  test('includes the time that passes before a rename takes the new name', async () => {
    const host = await startHost();
    const volume = await host.store.create(volumeSpec('a'), scope);
    let isHeld = false;
    // The verb takes the lock, then reads the record.
    host.hook = async ({ procedure, make }) => {
      const answer = await make();
      if (procedure === 'create' || procedure === 'setattr') isHeld = true;
      else if (isHeld && procedure === 'read') host.clock.pass(31_000);
      return answer;
    };
    await expect(host.store.rename(volume, 'b' as typeof volume.name, scope)).rejects.toMatchObject({
      code: 'deadline',
    });
    expect(existsSync(join(folder, 'a'))).toBe(true);
    host.hook = ({ make }) => make();
    expect(await host.store.names(scope)).toContain('a');
  });
});
