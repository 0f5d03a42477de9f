import { mkdir, readdir, readFile, rename, rmdir, unlink, writeFile } from 'node:fs/promises';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Volume, VolumeSpec } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';

// Each test puts the store into the state that kill -9 leaves at one point of a verb, reopens it, and then either
// repeats the call or sweeps. Both must end in the same complete state, and in between there is one volume, not two.

let under: LocalStoreUnderTest;

beforeEach(async () => {
  under = await localStore();
});
afterEach(async () => {
  await under[Symbol.asyncDispose]();
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
const b = volumeName('b');

async function filled(): Promise<Volume> {
  const made = await under.store.create(want, scope);
  await writeFile(under.at('a', 'file'), 'data');
  return made;
}

/** The intent that a verb writes into the record before it moves anything. */
async function intend(path: string, intent: Record<string, unknown>): Promise<void> {
  await writeFile(under.at(path), JSON.stringify({ ...JSON.parse(await readFile(under.at(path), 'utf8')), ...intent }));
}

async function tree(): Promise<string[]> {
  const ours = ['.stowage/lock', '.stowage/owner.json', '.stowage/store.json', '.stowage'];
  const folders = ['tmp', 'deleting', 'trash', 'retained'].map((folder) => `.stowage/${folder}`);
  return (await readdir(under.root, { recursive: true }))
    .filter((entry) => ![...ours, ...folders].includes(entry) && !entry.startsWith('.stowage/reserve'))
    .toSorted();
}

const seen = async (): Promise<Volume[]> => Array.fromAsync(under.store.list(scope));
const trashed = async (): Promise<string[]> => (await under.store.trash.list(scope)).map(({ volume }) => volume.id);

interface Ending {
  /** The state after a restart alone. */
  readonly between: () => Promise<void>;
  readonly repeat: () => Promise<unknown>;
  readonly after: () => Promise<void>;
}

/** Runs one crash, then recovers in both ways. */
function crash(title: string, prepare: () => Promise<Ending>, sweepEndsDifferently?: () => Promise<void>): void {
  for (const way of ['repeated', 'swept'] as const) {
    test(`${title}, then ${way}`, async () => {
      const { between, repeat, after } = await prepare();
      await under.reopen();
      await between();
      if (way === 'swept') {
        for (let i = 0; i < 2; i++) {
          await under.store.housekeeping.sweep(scope);
          await under.store.housekeeping.reclaim(scope);
        }
        await (sweepEndsDifferently ?? after)();
        if (sweepEndsDifferently === undefined) await repeat();
        else return;
      } else for (let i = 0; i < 2; i++) await repeat();
      await under.store.housekeeping.sweep(scope);
      await under.store.housekeeping.reclaim(scope);
      await after();
      expect(await readdir(under.at('.stowage', 'tmp'))).toEqual([]);
    });
  }
}

describe('after a kill during create', () => {
  const whole = async (): Promise<void> => {
    expect(await tree()).toEqual(['a', 'a.meta']);
    expect(await seen()).toMatchObject([{ name: 'a', requestId: 'request' }]);
    expect((await under.store.get(want.name, scope))?.condition).toBe('ok');
  };
  const repeat = (): Promise<unknown> => under.store.create({ ...want, id: newVolumeId() }, scope);

  for (const [title, text] of [
    ['when the record was empty', ''],
    ['in the middle of the record', '{"version":1,"id":"sv1-'],
  ] as const) {
    crash(
      title,
      async () => {
        await writeFile(under.at('a.meta'), text);
        const between = async (): Promise<void> => {
          expect(await seen()).toEqual([]);
          expect(await under.store.get(want.name, scope)).toBeUndefined();
        };
        return { between, repeat, after: whole };
      },
      async () => expect(await tree()).toEqual([]),
    );
  }

  crash(
    'between record and data',
    async () => {
      await under.store.create(want, scope);
      await rmdir(under.at('a'));
      await mkdir(under.at('.stowage', 'tmp', 'earlier-1'));
      const between = async (): Promise<void> => {
        expect(await under.store.get(want.name, scope)).toMatchObject({ condition: 'missing' });
      };
      return { between, repeat, after: whole };
    },
    // Without a retry it looks like a volume that lost its data, so it stays visible.
    async () => expect(await tree()).toEqual(['a.meta']),
  );
});

describe('after a kill during delete', () => {
  const gone = async (): Promise<void> => {
    expect(await tree()).toEqual([]);
    expect(await seen()).toEqual([]);
    expect(await under.store.housekeeping.orphans(scope)).toEqual([]);
  };

  crash('when the data were moved out', async () => {
    const made = await filled();
    await rename(under.at('a'), under.at('.stowage', 'deleting', made.id));
    return {
      between: async () => expect(await seen()).toEqual([made]),
      repeat: () => under.store.delete(made, scope),
      after: gone,
    };
  });

  crash(
    'between data and record, only if it is empty',
    async () => {
      const made = await under.store.create(want, scope);
      await rmdir(under.at('a'));
      return {
        between: async () => expect(await seen()).toEqual([made]),
        repeat: () => under.store.delete(made, scope, { onlyIfEmpty: true }),
        after: gone,
      };
    },
    // Without a retry it looks like a volume that lost its data, so it stays visible.
    async () => expect(await tree()).toEqual(['a.meta']),
  );

  crash('when the record was gone too', async () => {
    const made = await filled();
    await rename(under.at('a'), under.at('.stowage', 'deleting', made.id));
    await unlink(under.at('a.meta'));
    return {
      between: async () => expect(await seen()).toEqual([]),
      repeat: () => under.store.delete(made, scope),
      after: gone,
    };
  });

  test('freeing space first removes the record first', async () => {
    const made = await filled();
    await rename(under.at('a'), under.at('.stowage', 'deleting', made.id));
    await under.reopen();
    await under.store.housekeeping.reclaim(scope);
    await gone();
  });

  test('a repeated creation before the repeated deletion makes a new volume without the old data', async () => {
    const made = await filled();
    await rename(under.at('a'), under.at('.stowage', 'deleting', made.id));
    await under.reopen();
    const again = await under.store.create({ ...want, id: newVolumeId() }, scope);
    expect(again.id).not.toBe(made.id);
    await under.store.housekeeping.reclaim(scope);
    expect(await tree()).toEqual(['a', 'a.meta']);
  });
});

describe('after a kill during rename', () => {
  const done = async (): Promise<void> => {
    expect(await tree()).toEqual(['b', 'b.meta', 'b/file']);
    expect(await seen()).toMatchObject([{ id: want.id, name: 'b' }]);
    expect(await under.store.housekeeping.orphans(scope)).toEqual([]);
  };
  const oneOnly = async (): Promise<void> => {
    expect((await seen()).map(({ id }) => id)).toEqual([want.id]);
    const conditions = await Promise.all(
      [want.name, b].map(async (name) => (await under.store.get(name, scope))?.condition),
    );
    expect(conditions.filter((condition) => condition !== undefined)).toEqual(['ok']);
  };

  crash(
    'when only the intent was written',
    async () => {
      const made = await filled();
      await intend('a.meta', { movingTo: 'b', revision: 2 });
      return { between: oneOnly, repeat: () => under.store.rename(made, b, scope), after: done };
    },
    async () => {
      expect(await tree()).toEqual(['a', 'a.meta', 'a/file']);
      await oneOnly();
    },
  );

  crash('when the data were moved', async () => {
    const made = await filled();
    await intend('a.meta', { movingTo: 'b', revision: 2 });
    await rename(under.at('a'), under.at('b'));
    return { between: oneOnly, repeat: () => under.store.rename(made, b, scope), after: done };
  });

  crash('when the record was moved', async () => {
    const made = await filled();
    await intend('a.meta', { movingTo: 'b', revision: 2 });
    await rename(under.at('a'), under.at('b'));
    await rename(under.at('a.meta'), under.at('b.meta'));
    return { between: oneOnly, repeat: () => under.store.rename(made, b, scope), after: done };
  });

  test('an abandoned intent does not affect a volume that takes the other name', async () => {
    const made = await filled();
    await intend('a.meta', { movingTo: 'b', revision: 2 });
    const other = await under.store.create({ ...want, id: newVolumeId(), name: b, requestId: 'other' }, scope);
    await under.lose(made);
    await under.reopen();
    await under.store.housekeeping.sweep(scope);
    expect((await under.store.get(b, scope))?.volume).toEqual(other);
    expect((await under.store.get(made.name, scope))?.condition).toBe('missing');
  });

  test('other verbs finish the interrupted rename first', async () => {
    const made = await filled();
    await intend('a.meta', { movingTo: 'b', revision: 2 });
    await rename(under.at('a'), under.at('b'));
    await under.reopen();
    expect(await under.store.label(made, { x: 'y' }, scope)).toMatchObject({ name: 'b', labels: { x: 'y' } });
    expect(await tree()).toEqual(['b', 'b.meta', 'b/file']);
  });
});

describe('after a kill during a move to the trash', () => {
  const put = async (made: Volume): Promise<void> => {
    await intend('a.meta', { deletedAt: 7 });
    await mkdir(under.at('.stowage', 'trash', made.id));
  };
  const done = async (): Promise<void> => {
    const entry = `.stowage/trash/${want.id}`;
    expect(await tree()).toEqual([entry, `${entry}/data`, `${entry}/data/file`, `${entry}/meta`]);
    expect(await seen()).toEqual([]);
    expect(await trashed()).toEqual([want.id]);
  };
  const inOnePlace = async (): Promise<void> => {
    expect([...(await seen()).map(({ id }) => id), ...(await trashed())]).toEqual([want.id]);
  };

  crash(
    'before the data were moved',
    async () => {
      const made = await filled();
      await put(made);
      return { between: inOnePlace, repeat: () => under.store.trash.put(made, keptForAWeek(7), scope), after: done };
    },
    async () => {
      expect(await tree()).toEqual(['a', 'a.meta', 'a/file']);
      await inOnePlace();
    },
  );

  crash('when the data were moved', async () => {
    const made = await filled();
    await put(made);
    await rename(under.at('a'), under.at('.stowage', 'trash', made.id, 'data'));
    return { between: inOnePlace, repeat: () => under.store.trash.put(made, keptForAWeek(7), scope), after: done };
  });
});

describe('after a kill during restore', () => {
  const inTrash = async (): Promise<Volume> => {
    const made = await filled();
    await under.store.trash.put(made, keptForAWeek(7), scope);
    return made;
  };
  const done = async (): Promise<void> => {
    expect(await tree()).toEqual(['b', 'b.meta', 'b/file']);
    expect(await seen()).toMatchObject([{ id: want.id, name: 'b' }]);
    expect(await trashed()).toEqual([]);
    expect(await under.store.housekeeping.orphans(scope)).toEqual([]);
  };
  const inOnePlace = async (): Promise<void> => {
    expect([...(await seen()).map(({ id }) => id), ...(await trashed())]).toEqual([want.id]);
  };
  const record = `.stowage/trash/${want.id}/meta`;

  crash(
    'when only the intent was written',
    async () => {
      const made = await inTrash();
      await intend(record, { movingTo: 'b' });
      return { between: inOnePlace, repeat: () => under.store.trash.restore(made.id, b, scope), after: done };
    },
    inOnePlace,
  );

  crash('when the data were moved', async () => {
    const made = await inTrash();
    await intend(record, { movingTo: 'b' });
    await rename(under.at('.stowage', 'trash', made.id, 'data'), under.at('b'));
    return { between: inOnePlace, repeat: () => under.store.trash.restore(made.id, b, scope), after: done };
  });

  crash('when the record was moved', async () => {
    const made = await inTrash();
    await intend(record, { movingTo: 'b' });
    await rename(under.at('.stowage', 'trash', made.id, 'data'), under.at('b'));
    await rename(under.at(record), under.at('b.meta'));
    return { between: inOnePlace, repeat: () => under.store.trash.restore(made.id, b, scope), after: done };
  });
});

describe('after a kill during the adoption of a released volume', () => {
  crash('when the record was written', async () => {
    const made = await filled();
    await under.store.adoption.release(made, scope);
    const retained = under.at('.stowage', 'retained', `${made.id}.meta`);
    const meta = JSON.parse(await readFile(retained, 'utf8'));
    await writeFile(under.at('a.meta'), JSON.stringify({ ...meta, requestId: 'adopt', revision: 2 }));
    const whole = async (): Promise<void> => {
      expect(await tree()).toEqual(['a', 'a.meta', 'a/file']);
      expect(await seen()).toMatchObject([{ id: made.id, name: 'a', requestId: 'adopt' }]);
    };
    return {
      between: async () => expect(await seen()).toMatchObject([{ id: made.id }]),
      repeat: () => under.store.adoption.adopt(made.name, { ...want, requestId: 'adopt' }, scope),
      after: whole,
    };
  });
});
