import { mkdir, readdir, readFile, rename, rmdir, unlink, writeFile } from 'node:fs/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';

// Each test puts the store into the state that kill -9 leaves at one point of a verb, reopens the store, and then either
// repeats the call or sweeps. Both must end in the same complete state, and between them there must be exactly one volume.

let storeUnderTest: LocalStoreUnderTest;

beforeEach(async () => {
  storeUnderTest = await localStore();
});
afterEach(async () => {
  await storeUnderTest[Symbol.asyncDispose]();
});

const want: VolumeSpec = {
  id: newVolumeId(),
  name: volumeName('a'),
  bytes: undefined,
  access: 'filesystem',
  labels: {},
  requestId: 'request',
  createdAt: 0,
  instance: 'instance-1',
};
const newName = volumeName('b');

async function createFilled(): Promise<Volume> {
  const made = await storeUnderTest.store.create(want, scope);
  await writeFile(storeUnderTest.at('a', 'file'), 'data');
  return made;
}

/** The intent that a verb writes into the record before it moves anything. */
async function writeIntent(path: string, intent: Record<string, unknown>): Promise<void> {
  await writeFile(
    storeUnderTest.at(path),
    JSON.stringify({ ...JSON.parse(await readFile(storeUnderTest.at(path), 'utf8')), ...intent }),
  );
}

async function listTree(): Promise<string[]> {
  const ours = ['.stowage/lock', '.stowage/owner.json', '.stowage/store.json', '.stowage'];
  const folders = ['tmp', 'deleting', 'trash', 'retained'].map((folder) => `.stowage/${folder}`);
  return (await readdir(storeUnderTest.root, { recursive: true }))
    .filter((entry) => ![...ours, ...folders].includes(entry) && !entry.startsWith('.stowage/reserve'))
    .toSorted();
}

const listVolumes = async (): Promise<Volume[]> => Array.fromAsync(storeUnderTest.store.list(scope));
const trashedIds = async (): Promise<string[]> =>
  (await storeUnderTest.store.trash.list(scope)).map(({ volume }) => volume.id);

interface Recovery {
  /** The state after a restart alone. */
  readonly checkAfterRestart: () => Promise<void>;
  readonly repeat: () => Promise<unknown>;
  readonly checkEnd: () => Promise<void>;
}

/** Adds two tests: one recovers by repeating the call, the other by a sweep. */
function testCrash(title: string, prepare: () => Promise<Recovery>, checkEndOfSweep?: () => Promise<void>): void {
  for (const way of ['repeated', 'swept'] as const) {
    test(`${title}, then ${way}`, async () => {
      const { checkAfterRestart, repeat, checkEnd } = await prepare();
      await storeUnderTest.reopen();
      await checkAfterRestart();
      if (way === 'swept') {
        for (let i = 0; i < 2; i++) {
          await storeUnderTest.store.housekeeping.sweep(scope);
          await storeUnderTest.store.housekeeping.reclaim(scope);
        }
        await (checkEndOfSweep ?? checkEnd)();
        if (checkEndOfSweep === undefined) await repeat();
        else return;
      } else for (let i = 0; i < 2; i++) await repeat();
      await storeUnderTest.store.housekeeping.sweep(scope);
      await storeUnderTest.store.housekeeping.reclaim(scope);
      await checkEnd();
      expect(await readdir(storeUnderTest.at('.stowage', 'tmp'))).toEqual([]);
    });
  }
}

describe('after a kill during create', () => {
  const expectComplete = async (): Promise<void> => {
    expect(await listTree()).toEqual(['a', 'a.meta']);
    expect(await listVolumes()).toMatchObject([{ name: 'a', requestId: 'request' }]);
    expect((await storeUnderTest.store.get(want.name, scope))?.condition).toBe('ok');
  };
  const repeat = (): Promise<unknown> => storeUnderTest.store.create({ ...want, id: newVolumeId() }, scope);

  for (const [title, text] of [
    ['when the record was empty', ''],
    ['in the middle of the record', '{"version":1,"id":"sv1-'],
  ] as const) {
    testCrash(
      title,
      async () => {
        await writeFile(storeUnderTest.at('a.meta'), text);
        const checkAfterRestart = async (): Promise<void> => {
          expect(await listVolumes()).toEqual([]);
          expect(await storeUnderTest.store.get(want.name, scope)).toBeUndefined();
        };
        return { checkAfterRestart, repeat, checkEnd: expectComplete };
      },
      async () => expect(await listTree()).toEqual([]),
    );
  }

  testCrash(
    'between record and data',
    async () => {
      await storeUnderTest.store.create(want, scope);
      await rmdir(storeUnderTest.at('a'));
      await mkdir(storeUnderTest.at('.stowage', 'tmp', 'earlier-1'));
      const checkAfterRestart = async (): Promise<void> => {
        expect(await storeUnderTest.store.get(want.name, scope)).toMatchObject({ condition: 'missing' });
      };
      return { checkAfterRestart, repeat, checkEnd: expectComplete };
    },
    // Without a retry it looks like a volume that lost its data, so it stays visible.
    async () => expect(await listTree()).toEqual(['a.meta']),
  );
});

describe('after a kill during delete', () => {
  const expectGone = async (): Promise<void> => {
    expect(await listTree()).toEqual([]);
    expect(await listVolumes()).toEqual([]);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toEqual([]);
  };

  testCrash('when the data were moved out', async () => {
    const made = await createFilled();
    await rename(storeUnderTest.at('a'), storeUnderTest.at('.stowage', 'deleting', made.id));
    return {
      checkAfterRestart: async () => expect(await listVolumes()).toEqual([made]),
      repeat: () => storeUnderTest.store.delete(made, scope),
      checkEnd: expectGone,
    };
  });

  testCrash(
    'between data and record, only if it is empty',
    async () => {
      const made = await storeUnderTest.store.create(want, scope);
      await rmdir(storeUnderTest.at('a'));
      return {
        checkAfterRestart: async () => expect(await listVolumes()).toEqual([made]),
        repeat: () => storeUnderTest.store.delete(made, scope, { onlyIfEmpty: true }),
        checkEnd: expectGone,
      };
    },
    // Without a retry it looks like a volume that lost its data, so it stays visible.
    async () => expect(await listTree()).toEqual(['a.meta']),
  );

  testCrash('when the record was gone too', async () => {
    const made = await createFilled();
    await rename(storeUnderTest.at('a'), storeUnderTest.at('.stowage', 'deleting', made.id));
    await unlink(storeUnderTest.at('a.meta'));
    return {
      checkAfterRestart: async () => expect(await listVolumes()).toEqual([]),
      repeat: () => storeUnderTest.store.delete(made, scope),
      checkEnd: expectGone,
    };
  });

  test('reclaim removes the record before it frees the space', async () => {
    const made = await createFilled();
    await rename(storeUnderTest.at('a'), storeUnderTest.at('.stowage', 'deleting', made.id));
    await storeUnderTest.reopen();
    await storeUnderTest.store.housekeeping.reclaim(scope);
    await expectGone();
  });

  test('a creation before the deletion is repeated makes a new volume without the old data', async () => {
    const made = await createFilled();
    await rename(storeUnderTest.at('a'), storeUnderTest.at('.stowage', 'deleting', made.id));
    await storeUnderTest.reopen();
    const again = await storeUnderTest.store.create({ ...want, id: newVolumeId() }, scope);
    expect(again.id).not.toBe(made.id);
    await storeUnderTest.store.housekeeping.reclaim(scope);
    expect(await listTree()).toEqual(['a', 'a.meta']);
  });
});

describe('after a kill during rename', () => {
  const expectRenamed = async (): Promise<void> => {
    expect(await listTree()).toEqual(['b', 'b.meta', 'b/file']);
    expect(await listVolumes()).toMatchObject([{ id: want.id, name: 'b' }]);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toEqual([]);
  };
  const expectOneVolume = async (): Promise<void> => {
    expect((await listVolumes()).map(({ id }) => id)).toEqual([want.id]);
    const conditions = await Promise.all(
      [want.name, newName].map(async (name) => (await storeUnderTest.store.get(name, scope))?.condition),
    );
    expect(conditions.filter((condition) => condition !== undefined)).toEqual(['ok']);
  };

  testCrash(
    'when only the intent was written',
    async () => {
      const made = await createFilled();
      await writeIntent('a.meta', { movingTo: 'b', revision: 2 });
      return {
        checkAfterRestart: expectOneVolume,
        repeat: () => storeUnderTest.store.rename(made, newName, scope),
        checkEnd: expectRenamed,
      };
    },
    async () => {
      expect(await listTree()).toEqual(['a', 'a.meta', 'a/file']);
      await expectOneVolume();
    },
  );

  testCrash('when the data were moved', async () => {
    const made = await createFilled();
    await writeIntent('a.meta', { movingTo: 'b', revision: 2 });
    await rename(storeUnderTest.at('a'), storeUnderTest.at('b'));
    return {
      checkAfterRestart: expectOneVolume,
      repeat: () => storeUnderTest.store.rename(made, newName, scope),
      checkEnd: expectRenamed,
    };
  });

  testCrash('when the record was moved', async () => {
    const made = await createFilled();
    await writeIntent('a.meta', { movingTo: 'b', revision: 2 });
    await rename(storeUnderTest.at('a'), storeUnderTest.at('b'));
    await rename(storeUnderTest.at('a.meta'), storeUnderTest.at('b.meta'));
    return {
      checkAfterRestart: expectOneVolume,
      repeat: () => storeUnderTest.store.rename(made, newName, scope),
      checkEnd: expectRenamed,
    };
  });

  test('an abandoned intent does not affect a volume that takes the other name', async () => {
    const made = await createFilled();
    await writeIntent('a.meta', { movingTo: 'b', revision: 2 });
    const other = await storeUnderTest.store.create(
      { ...want, id: newVolumeId(), name: newName, requestId: 'other' },
      scope,
    );
    await storeUnderTest.lose(made);
    await storeUnderTest.reopen();
    await storeUnderTest.store.housekeeping.sweep(scope);
    expect((await storeUnderTest.store.get(newName, scope))?.volume).toEqual(other);
    expect((await storeUnderTest.store.get(made.name, scope))?.condition).toBe('missing');
  });

  test('other verbs finish the interrupted rename first', async () => {
    const made = await createFilled();
    await writeIntent('a.meta', { movingTo: 'b', revision: 2 });
    await rename(storeUnderTest.at('a'), storeUnderTest.at('b'));
    await storeUnderTest.reopen();
    expect(await storeUnderTest.store.label(made, { x: 'y' }, scope)).toMatchObject({ name: 'b', labels: { x: 'y' } });
    expect(await listTree()).toEqual(['b', 'b.meta', 'b/file']);
  });
});

describe('after a kill during a move to the trash', () => {
  const beginTrashing = async (made: Volume): Promise<void> => {
    await writeIntent('a.meta', { deletedAt: 7 });
    await mkdir(storeUnderTest.at('.stowage', 'trash', made.id));
  };
  const expectTrashed = async (): Promise<void> => {
    const entry = `.stowage/trash/${want.id}`;
    expect(await listTree()).toEqual([entry, `${entry}/data`, `${entry}/data/file`, `${entry}/meta`]);
    expect(await listVolumes()).toEqual([]);
    expect(await trashedIds()).toEqual([want.id]);
  };
  const expectInOnePlace = async (): Promise<void> => {
    expect([...(await listVolumes()).map(({ id }) => id), ...(await trashedIds())]).toEqual([want.id]);
  };

  testCrash(
    'before the data were moved',
    async () => {
      const made = await createFilled();
      await beginTrashing(made);
      return {
        checkAfterRestart: expectInOnePlace,
        repeat: () => storeUnderTest.store.trash.put(made, keptForAWeek(7), scope),
        checkEnd: expectTrashed,
      };
    },
    async () => {
      expect(await listTree()).toEqual(['a', 'a.meta', 'a/file']);
      await expectInOnePlace();
    },
  );

  testCrash('when the data were moved', async () => {
    const made = await createFilled();
    await beginTrashing(made);
    await rename(storeUnderTest.at('a'), storeUnderTest.at('.stowage', 'trash', made.id, 'data'));
    return {
      checkAfterRestart: expectInOnePlace,
      repeat: () => storeUnderTest.store.trash.put(made, keptForAWeek(7), scope),
      checkEnd: expectTrashed,
    };
  });
});

describe('after a kill during restore', () => {
  const createTrashed = async (): Promise<Volume> => {
    const made = await createFilled();
    await storeUnderTest.store.trash.put(made, keptForAWeek(7), scope);
    return made;
  };
  const expectRestored = async (): Promise<void> => {
    expect(await listTree()).toEqual(['b', 'b.meta', 'b/file']);
    expect(await listVolumes()).toMatchObject([{ id: want.id, name: 'b' }]);
    expect(await trashedIds()).toEqual([]);
    expect(await storeUnderTest.store.housekeeping.orphans(scope)).toEqual([]);
  };
  const expectInOnePlace = async (): Promise<void> => {
    expect([...(await listVolumes()).map(({ id }) => id), ...(await trashedIds())]).toEqual([want.id]);
  };
  const record = `.stowage/trash/${want.id}/meta`;

  testCrash(
    'when only the intent was written',
    async () => {
      const made = await createTrashed();
      await writeIntent(record, { movingTo: 'b' });
      return {
        checkAfterRestart: expectInOnePlace,
        repeat: () => storeUnderTest.store.trash.restore(made.id, newName, scope),
        checkEnd: expectRestored,
      };
    },
    expectInOnePlace,
  );

  testCrash('when the data were moved', async () => {
    const made = await createTrashed();
    await writeIntent(record, { movingTo: 'b' });
    await rename(storeUnderTest.at('.stowage', 'trash', made.id, 'data'), storeUnderTest.at('b'));
    return {
      checkAfterRestart: expectInOnePlace,
      repeat: () => storeUnderTest.store.trash.restore(made.id, newName, scope),
      checkEnd: expectRestored,
    };
  });

  testCrash('when the record was moved', async () => {
    const made = await createTrashed();
    await writeIntent(record, { movingTo: 'b' });
    await rename(storeUnderTest.at('.stowage', 'trash', made.id, 'data'), storeUnderTest.at('b'));
    await rename(storeUnderTest.at(record), storeUnderTest.at('b.meta'));
    return {
      checkAfterRestart: expectInOnePlace,
      repeat: () => storeUnderTest.store.trash.restore(made.id, newName, scope),
      checkEnd: expectRestored,
    };
  });
});

describe('after a kill during the adoption of a released volume', () => {
  testCrash('when the record was written', async () => {
    const made = await createFilled();
    await storeUnderTest.store.adoption.release(made, scope);
    const retained = storeUnderTest.at('.stowage', 'retained', `${made.id}.meta`);
    const meta = JSON.parse(await readFile(retained, 'utf8'));
    await writeFile(storeUnderTest.at('a.meta'), JSON.stringify({ ...meta, requestId: 'adopt', revision: 2 }));
    const expectAdopted = async (): Promise<void> => {
      expect(await listTree()).toEqual(['a', 'a.meta', 'a/file']);
      expect(await listVolumes()).toMatchObject([{ id: made.id, name: 'a', requestId: 'adopt' }]);
    };
    return {
      checkAfterRestart: async () => expect(await listVolumes()).toMatchObject([{ id: made.id }]),
      repeat: () => storeUnderTest.store.adoption.adopt(made.name, { ...want, requestId: 'adopt' }, scope),
      checkEnd: expectAdopted,
    };
  });
});
