import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { NodeName } from '#core/model.ts';
import { newVolumeId, storeName, volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { createCreate } from '../file-store/create.ts';
import { createDirectoryLayout } from '../file-store/layout-directory.ts';
import { createReadVerbs } from '../file-store/read-verbs.ts';
import { createVerbContext } from '../file-store/verb-context.ts';
import { createDirectoryMaker } from './new-directory.ts';
import { openStoreRoot } from './open-store-root.ts';
import { parseOptions } from './options.ts';
import { createSlotsByDevice } from './slots-by-device.ts';

test.each(['usage', 'source'] as const)(
  '%s waits for an operation in progress, and does not finish it',
  async (verb) => {
    await using stack = new AsyncDisposableStack();
    const root = await mkdtemp(join(tmpdir(), 'stowage-reading-'));
    stack.defer(() => rm(root, { recursive: true }));
    const options = parseOptions(`local://${root}`, {});
    const context = { instance: 'instance-1', node: 'node-1' as NodeName };
    const storeRoot = await openStoreRoot(options, storeName('test'), context, scope.log, createSlotsByDevice());
    stack.defer(() => storeRoot.close());
    const clock = systemClock();
    const layout = createDirectoryLayout({
      storeRoot,
      clock,
      make: await createDirectoryMaker(options, storeRoot, false),
      source: (path) => ({ kind: 'directory', node: context.node, path }),
    });
    const verbContext = createVerbContext(storeRoot, layout, clock);
    const spec = { id: newVolumeId(), name: volumeName('a'), bytes: undefined, access: 'filesystem' } as const;
    const made = await createCreate(verbContext)(
      { ...spec, labels: {}, requestId: 'r', createdAt: 0, instance: 'instance-1' },
      scope,
    );
    const readVerbs = createReadVerbs(verbContext);
    let readResult: Promise<unknown> = Promise.resolve();
    // The steps of a move to the trash: write the intent, move the data, then the record.
    await verbContext.runVerb('moving', [made.name], scope, async () => {
      const { store: _store, ...meta } = made;
      await storeRoot.replaceRecord(storeRoot.metaPath('a'), { ...meta, deletedAt: 1 });
      await mkdir(storeRoot.ownPath('trash', made.id));
      await rename(join(root, 'a'), storeRoot.ownPath('trash', made.id, 'data'));
      readResult = readVerbs[verb](made, scope).catch((cause: unknown) => cause);
      // Without the lock on the name the verb would end first. With it, the sleep ends first.
      await Promise.race([readResult, clock.sleep(100, scope.signal)]);
      expect(await readdir(root)).toEqual(['.stowage', 'a.meta']);
      await rename(storeRoot.metaPath('a'), storeRoot.ownPath('trash', made.id, 'meta'));
    });
    expect(await readResult).toMatchObject({ code: 'not-found', reason: 'volume-unknown' });
  },
);
