import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type {
  Mount,
  NfsConnection,
  NodeName,
  Operation,
  OperationId,
  Source,
  StoreName,
  Token,
  Volume,
  VolumeId,
  VolumeName,
} from '#core/model.ts';
import type { Records, VolumeQuery } from '#core/ports.ts';

/** Storage for records. One process at a time can open it. */
export interface RecordsUnderTest extends Disposable {
  open(): Records;
}

const [gold, silver] = ['gold' as StoreName, 'silver' as StoreName];
const idOf = (n: number): VolumeId => `sv1-${n}` as VolumeId;
const volume = (n: number, more: Partial<Volume> = {}): Volume => ({
  id: idOf(n),
  name: `v${n}` as VolumeName,
  store: gold,
  bytes: 100n,
  enforce: false,
  access: 'filesystem',
  labels: { n: `${n}` },
  requestId: `request-${n}`,
  createdAt: n,
  revision: 1,
  instance: 'here',
  ...more,
});
const everything: VolumeQuery = {
  stores: [gold, silver],
  labels: {},
  contains: undefined,
  after: undefined,
  limit: 100,
};
const operation = (n: number, more: Partial<Operation> = {}): Operation => ({
  id: `op1-${n}` as OperationId,
  kind: 'volume.create',
  store: gold,
  subject: `gold/v${n}`,
  params: { nested: { list: [1, 'two', null] } },
  state: 'running',
  startedAt: n,
  endedAt: undefined,
  error: undefined,
  ...more,
});
const mount = (target: string, more: Partial<Mount> = {}): Mount => ({
  volumeId: idOf(1),
  source: { kind: 'directory', node: 'here' as NodeName, path: '/srv/v1' },
  target,
  readOnly: false,
  user: { kind: 'path', name: target, node: 'here' as NodeName },
  since: 1,
  madeTarget: true,
  ...more,
});

const node = 'here' as NodeName;
const minimalConnection: NfsConnection = {
  client: 'built-in',
  addresses: ['10.0.0.1'],
  port: 2049,
  mountPort: undefined,
  root: 'cm9vdA==',
  connections: 2,
  sourcePorts: undefined,
  tls: undefined,
  network: undefined,
  squash: 'all',
  uid: 1,
  gid: 2,
  softMs: undefined,
  maxRead: 65_536,
  maxWrite: 65_536,
  locks: 'node',
  readOnly: false,
  quota: undefined,
};
const fullConnection: NfsConnection = {
  ...minimalConnection,
  mountPort: 20_048,
  sourcePorts: 'privileged',
  tls: { folder: '/etc/tls' },
  network: 'netns:a',
  group: 7,
  softMs: 1000,
  retries: 2,
  sync: true,
  quota: { bytes: 2 ** 40, ledger: 'bGVkZ2Vy' },
};
/** Sources of every kind, with all optional fields and with none. */
const sources: readonly Source[] = [
  { kind: 'directory', node, path: '/srv/v1' },
  { kind: 'loop', node, path: '/srv/v1.img', filesystem: 'xfs' },
  { kind: 'loop', node, path: '/srv/v1.img', filesystem: undefined },
  { kind: 'loop', node, path: '/srv/v1.img', filesystem: undefined, readOnly: true },
  { kind: 'nfs', hosts: ['filer'], path: '/export/v1', way: minimalConnection },
  { kind: 'nfs', hosts: ['filer', '10.0.0.2'], path: '/export/v1', way: fullConnection },
];
/** Operations of every kind, as version 0.1 wrote them. */
const { operations: intents }: { readonly operations: readonly Pick<Operation, 'kind' | 'params'>[] } = JSON.parse(
  readFileSync(new URL('../../core/fixtures/stored-1.json', import.meta.url), 'utf8'),
);

/** The contract of the port `Records`. Each test reads everything again after it closed and reopened the records. */
export function recordsContract(title: string, make: () => RecordsUnderTest): void {
  describe(`${title}: the contract of records`, () => {
    let under: RecordsUnderTest;
    let records: Records;
    const reopen = (): void => {
      records.close();
      records = under.open();
    };
    /** Makes every write twice, then restarts. The results must be the same. */
    const write = (work: () => void): void => {
      work();
      work();
    };
    const kept = (read: () => unknown, expected: unknown): void => {
      expect(read()).toEqual(expected);
      reopen();
      expect(read()).toEqual(expected);
    };

    beforeEach(() => {
      under = make();
      records = under.open();
    });
    afterEach(() => {
      write(() => records.close());
      under[Symbol.dispose]();
    });

    test('a setting has the value that was written last', () => {
      expect(records.settings.get('a')).toBeUndefined();
      records.settings.set('a', '1');
      write(() => records.settings.set('a', '2'));
      kept(() => records.settings.get('a'), '2');
    });

    test('stores are listed by name, each with its last URI', () => {
      write(() => records.stores.put(silver, 'local:///silver'));
      records.stores.put(gold, 'local:///old');
      write(() => records.stores.put(gold, 'local:///gold'));
      kept(
        () => records.stores.list(),
        [
          { name: 'gold', uri: 'local:///gold' },
          { name: 'silver', uri: 'local:///silver' },
        ],
      );
      write(() => records.stores.remove(gold));
      kept(() => records.stores.list(), [{ name: 'silver', uri: 'local:///silver' }]);
    });

    describe('volumes', () => {
      const ids = (query: Partial<VolumeQuery> = {}): readonly string[] =>
        records.volumes.page({ ...everything, ...query }).map(({ id }) => id);

      test('are found by id, name, request and label', () => {
        const [one, twin] = [volume(1), volume(2, { name: 'v1' as VolumeName, store: silver, bytes: undefined })];
        for (const each of [one, twin]) write(() => records.volumes.put(each));
        kept(() => records.volumes.byId(one.id), one);
        kept(() => records.volumes.byName(silver, one.name), twin);
        kept(() => records.volumes.byRequest(gold, 'request-1'), one);
        kept(() => records.volumes.byRequest(silver, 'request-1'), undefined);
        kept(() => records.volumes.allByName(one.name), [one, twin]);
        kept(() => ids({ labels: { n: '2' } }), [twin.id]);
        kept(() => records.volumes.names(gold), [{ id: one.id, name: one.name }]);
        kept(() => records.volumes.totals(gold), { volumes: 1, bytes: 100n });
      });

      test('are paged by store and name, and an unknown store has none', () => {
        for (const n of [3, 1, 2]) records.volumes.put(volume(n));
        records.volumes.put(volume(4, { store: silver }));
        kept(() => ids({ limit: 2 }), [idOf(1), idOf(2)]);
        kept(() => ids({ after: { store: gold, name: 'v2' } }), [idOf(3), idOf(4)]);
        kept(() => ids({ contains: '3' }), [idOf(3)]);
        kept(() => ids({ stores: [] }), []);
      });

      test('have only the values of the last write, and are not found after their removal', () => {
        records.volumes.put(volume(1));
        write(() => records.volumes.put(volume(1, { name: 'new' as VolumeName, labels: {}, bytes: 7n })));
        kept(() => records.volumes.byName(gold, 'v1' as VolumeName), undefined);
        kept(() => ids({ labels: { n: '1' } }), []);
        kept(() => records.volumes.totals(gold), { volumes: 1, bytes: 7n });
        write(() => records.volumes.remove(idOf(1)));
        kept(() => [records.volumes.byId(idOf(1)), ids(), records.volumes.totals(gold).volumes], [undefined, [], 0]);
      });

      test('are removed when their store is forgotten, and volumes of other stores stay', () => {
        records.volumes.put(volume(1));
        records.volumes.put(volume(2, { store: silver }));
        write(() => records.volumes.forgetStore(gold));
        kept(() => ids(), [idOf(2)]);
      });
    });

    describe('operations', () => {
      const failure = { code: 'exhausted', reason: 'disk-full', message: 'no room', action: 'Free some.' };

      test('stay unfinished until their first end, with everything that a replay needs', () => {
        for (const n of [1, 2]) write(() => records.operations.begin(operation(n)));
        kept(() => records.operations.listUnfinished(), [operation(1), operation(2)]);
        write(() => records.operations.end(operation(1).id, 'failed', 9, failure));
        records.operations.end(operation(1).id, 'done', 10, undefined);
        kept(() => records.operations.listUnfinished(), [operation(2)]);
        const ended = operation(1, { state: 'failed', endedAt: 9, error: failure });
        kept(() => records.operations.get(operation(1).id), ended);
      });

      test('are listed in pages with the newest first, and only those of the requested stores', () => {
        for (const n of [1, 2, 3]) records.operations.begin(operation(n));
        records.operations.begin(operation(4, { store: undefined }));
        const page = (query: Parameters<Records['operations']['page']>[0]) => {
          const { items, next } = records.operations.page(query);
          return { ids: items.map(({ id }) => id), next };
        };
        const { ids, next } = page({ stores: [gold], limit: 2 });
        expect(ids).toEqual(['op1-3', 'op1-2']);
        kept(() => page({ stores: [gold], limit: 2, after: next }), { ids: ['op1-1'], next: undefined });
        kept(() => page({ limit: 1 }).ids, ['op1-4']);
        kept(() => page({ stores: [], limit: 2 }), { ids: [], next: undefined });
      });

      test('are trimmed to the requested number once they have ended, and never while they run', () => {
        for (const n of [1, 2, 3]) records.operations.begin(operation(n));
        for (const n of [1, 3]) records.operations.end(operation(n).id, 'done', n + 10, undefined);
        write(() => records.operations.prune(1));
        kept(() => records.operations.page({ limit: 9 }).items.map(({ id }) => id), ['op1-3', 'op1-2']);
      });
    });

    test('mounts are found by target and by volume, with the values of the last write', () => {
      const [a, b] = [mount('/a'), mount('/b', { volumeId: idOf(2) })];
      records.mounts.put({ ...a, readOnly: true });
      for (const each of [a, b]) write(() => records.mounts.put(each));
      kept(() => records.mounts.list(), [a, b]);
      kept(() => records.mounts.byTarget('/a'), a);
      kept(() => records.mounts.byVolume(idOf(2)), [b]);
      write(() => records.mounts.remove('/a'));
      kept(() => [records.mounts.byTarget('/a'), records.mounts.byVolume(idOf(1))], [undefined, []]);
    });

    test.each(sources.map((source) => [JSON.stringify(source), source] as const))(
      'the records return the source of a mount unchanged: %s',
      (text, source) => {
        records.mounts.put(mount('/a', { source }));
        kept(() => JSON.stringify(records.mounts.byTarget('/a')?.source), text);
      },
    );

    test.each(intents.map((intent) => [intent.kind, intent] as const))(
      'the records return the params of an operation unchanged: %s',
      (kind, { params }) => {
        records.operations.begin(operation(1, { kind, params }));
        kept(() => JSON.stringify(records.operations.listUnfinished()[0]?.params), JSON.stringify(params));
      },
    );

    test('a token is found by its latest hash, and can be removed once', () => {
      const token: Token = { id: 't', name: 'n', role: 'user', stores: [gold], createdAt: 1, expiresAt: undefined };
      records.tokens.put(token, 'old');
      write(() => records.tokens.put(token, 'new'));
      kept(() => [records.tokens.byHash('old'), records.tokens.byHash('new')], [undefined, token]);
      expect([records.tokens.remove('t'), records.tokens.remove('t')]).toEqual([true, false]);
      kept(() => records.tokens.list(), []);
    });

    test('answers are kept until they reach the given age', () => {
      const answer = { fingerprint: 'f', status: 201, body: '{}', at: 200 };
      records.idempotentResponses.put('key', { ...answer, status: undefined });
      write(() => records.idempotentResponses.put('key', answer));
      records.idempotentResponses.prune(200);
      kept(() => records.idempotentResponses.get('key'), answer);
      write(() => records.idempotentResponses.prune(201));
      kept(() => records.idempotentResponses.get('key'), undefined);
    });

    describe('records of container engines', () => {
      test('map a name to the volume that it was last given to', () => {
        records.engineNames.put('stowage', 'a', idOf(2));
        write(() => records.engineNames.put('stowage', 'a', idOf(1)));
        kept(
          () => [records.engineNames.get('stowage', 'a'), records.engineNames.get('stowage-local', 'a')],
          [idOf(1), undefined],
        );
        kept(() => records.engineNames.list('stowage'), [{ name: 'a', id: idOf(1) }]);
        write(() => records.engineNames.remove('stowage', 'a'));
        kept(() => records.engineNames.list('stowage'), []);
      });

      test('count the mounts of a hold, and drop the hold after as many unmounts', () => {
        const hold = { volumeId: idOf(1), plugin: 'stowage', id: '1', since: 5 } as const;
        write(() => records.engineMounts.add(hold));
        kept(() => records.engineMounts.byVolume(idOf(1)), [{ ...hold, count: 2 }]);
        records.engineMounts.release(idOf(1), 'stowage', '1');
        kept(() => records.engineMounts.list(), [{ ...hold, count: 1 }]);
        write(() => records.engineMounts.release(idOf(1), 'stowage', '1'));
        kept(() => records.engineMounts.list(), []);
        for (const id of ['1', '2']) records.engineMounts.add({ ...hold, id });
        write(() => records.engineMounts.clear(idOf(1)));
        kept(() => records.engineMounts.byVolume(idOf(1)), []);
      });

      test('replace the earlier references of the same engine only', () => {
        const reference = (engine: string, n: number) => ({
          engine,
          container: `c${n}`,
          name: `web${n}`,
          volumeId: idOf(n),
          running: n % 2 === 0,
        });
        records.references.replace('docker', [reference('docker', 1)]);
        write(() => records.references.replace('podman', [reference('podman', 1)]));
        write(() => records.references.replace('docker', [reference('docker', 2)]));
        kept(() => records.references.list(), [reference('docker', 2), reference('podman', 1)]);
        kept(() => records.references.byVolume(idOf(1)), [reference('podman', 1)]);
      });
    });

    describe('a transaction', () => {
      const wrong = new Error('wrong');

      test('returns the result of its work, and is committed completely or not at all', () => {
        const set = (value: string): string => {
          records.settings.set('a', value);
          return value;
        };
        expect(records.transaction(() => set('1'))).toBe('1');
        const failing = (): void =>
          records.transaction(() => {
            set('2');
            throw wrong;
          });
        expect(failing).toThrow(wrong);
        kept(() => records.settings.get('a'), '1');
      });

      test('that fails inside another one is rolled back alone, and is rolled back with the outer one', () => {
        const outer = (ends: () => void): void =>
          records.transaction(() => {
            records.settings.set('outer', '1');
            const inner = (): void =>
              records.transaction(() => {
                records.settings.set('inner', '1');
                throw wrong;
              });
            expect(inner).toThrow(wrong);
            records.transaction(() => records.settings.set('second', '1'));
            ends();
          });
        const values = () => ['outer', 'inner', 'second'].map((key) => records.settings.get(key));
        const failing = (): void =>
          outer(() => {
            throw wrong;
          });
        expect(failing).toThrow(wrong);
        kept(values, [undefined, undefined, undefined]);
        outer(() => undefined);
        kept(values, ['1', undefined, '1']);
      });

      test('cannot be asynchronous', () => {
        expect(() => records.transaction(async () => undefined)).toThrow('a transaction cannot wait');
      });

      test('of a batch is committed or rolled back by itself, in order', async () => {
        const order: string[] = [];
        const write = (key: string, ends = (): void => undefined): Promise<void> =>
          records.groupCommit(() => {
            order.push(key);
            records.settings.set(key, '1');
            ends();
          });
        const failing = (): never => {
          throw wrong;
        };
        const settled = await Promise.allSettled([write('a'), write('b', failing), write('c')]);
        expect(settled.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
        expect(order).toEqual(['a', 'b', 'c']);
        kept(() => ['a', 'b', 'c'].map((key) => records.settings.get(key)), ['1', undefined, '1']);
      });
    });
  });
}
