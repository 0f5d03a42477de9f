import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import type { Store } from '#core/ports.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { lacks } from '#testbed/lacks.ts';
import { scope } from '#testing/contracts/store.ts';
import { outcome } from '#testing/expected-errors.ts';
import { type FakeKubeApi, startKubeApi } from '#testing/fakes/kube-api.ts';
import { openNfs } from '#testing/nfs-store.ts';
import { type CallInterceptor, interceptCalls, shortWaitClock } from '#testing/nfs-tap.ts';
import { volumeSpec } from '#testing/volume-spec.ts';
import { createKubeClient, type KubeClient } from '#wire/kube/client.ts';
import { createNfsServer } from '#wire/nfs3/server/server.ts';
import { type ControllerMarks, createControllerMarks } from './controller-marks.ts';
import { type ControllerProcess, readRegistry, writeRegistry } from './controller-registry.ts';

let api: FakeKubeApi;
let client: KubeClient;
const { signal } = new AbortController();
const podsAt = '/api/v1/namespaces/storage/pods';

beforeEach(async () => {
  api = await startKubeApi();
  onTestFinished(() => api[Symbol.asyncDispose]());
  client = createKubeClient({ access: api.access, clock: systemClock(), userAgent: 'test' });
  onTestFinished(() => client[Symbol.dispose]());
});

const controller = (pod?: string): Promise<ControllerMarks> =>
  createControllerMarks({
    client,
    clock: systemClock(),
    namespace: 'storage',
    env: pod === undefined ? {} : { POD_NAME: pod, POD_UID: `uid-${pod}` },
  });
const acquire = ({ note }: ControllerMarks, text?: string): Promise<string> => note.whenAcquiring(text, signal);

/** Changes each entry of a registry. */
const changed = (text: string, change: (it: ControllerProcess) => ControllerProcess): string => {
  const { processes, dead } = readRegistry(text);
  return writeRegistry({ processes: processes.map(change), dead });
};
/** As if the processes had run in another pid namespace. */
const elsewhere = (text: string): string =>
  changed(text, (it) => ({ ...it, ...(it.kernel && { kernel: { ...it.kernel, scope: 'elsewhere' } }) }));
/** As if the processes had a pid that is free now. */
const killed = (text: string): string => {
  const { pid } = spawnSync('true');
  return changed(text, (it) => ({ ...it, ...(it.kernel && { kernel: { ...it.kernel, pid } }) }));
};

describe('a controller', () => {
  test('records itself once, with a mark of its own', async () => {
    const one = await controller('a');
    const text = await acquire(one);
    expect(readRegistry(text)).toMatchObject({
      processes: [{ mark: one.marks().own, pod: { name: 'a', uid: 'uid-a' } }],
      dead: [],
    });
    expect(await acquire(one, text)).toBe(text);
    expect(one.marks().dead).toEqual([]);
  });

  test('does not count a predecessor as dead that may live', async () => {
    const [one, two] = [await controller('a'), await controller('b')];
    const text = await acquire(one);
    for (const given of [text, elsewhere(text)]) {
      const { processes, dead } = readRegistry(await acquire(two, given));
      expect(processes.map(({ mark }) => mark)).toEqual([two.marks().own, one.marks().own]);
      expect([dead, two.marks().dead]).toEqual([[], []]);
      expect(await two.note.whileWaiting(given)).toBeUndefined();
    }
  });

  test.skipIf(lacks('linux'))('knows that a predecessor on the same machine is dead', async () => {
    const [one, two] = [await controller(), await controller()];
    const text = killed(await acquire(one));
    expect(readRegistry(await acquire(two, text)).dead).toEqual([one.marks().own]);
    expect(two.marks().dead).toEqual([one.marks().own]);
  });

  test.skipIf(lacks('linux'))(
    "that restarts in its pod reports its predecessor's death while another one leads",
    async () => {
      const one = await controller('a');
      const text = elsewhere(await acquire(one));
      const again = await controller('a');
      const buried = await again.note.whileWaiting(text);
      expect(readRegistry(buried)).toEqual({ processes: [], dead: [one.marks().own] });
      expect(await again.note.whileWaiting(buried)).toBeUndefined();
      const other = await controller('b');
      await acquire(other, buried);
      expect(other.marks().dead).toEqual([one.marks().own]);
    },
  );

  test.each<[string, boolean, object | undefined]>([
    [
      'has ended',
      true,
      {
        phase: 'Failed',
        containerStatuses: [{ name: 'c', state: { terminated: { finishedAt: '2026-01-01T00:00:00Z' } } }],
      },
    ],
    ['runs', false, { phase: 'Running', containerStatuses: [{ name: 'c', state: { running: {} } }] }],
    ['does not exist', false, undefined],
  ])('asks for the pod of its predecessor, which %s', async (_, isDead, status) => {
    const [one, two] = [await controller('a'), await controller('b')];
    const text = elsewhere(await acquire(one));
    const spec = { containers: [{ name: 'c' }] };
    if (status !== undefined) api.put(podsAt, { metadata: { name: 'a', uid: 'uid-a' }, spec, status });
    await acquire(two, text);
    expect(two.marks().dead).toEqual(isDead ? [one.marks().own] : []);
  });

  test('does not trust a pod of the same name, and does not wait long for a silent API server', async () => {
    const [one, two] = [await controller('a'), await controller('b')];
    const text = elsewhere(await acquire(one));
    const status = {
      phase: 'Failed',
      containerStatuses: [{ name: 'c', state: { terminated: { finishedAt: '2026-01-01T00:00:00Z' } } }],
    };
    api.put(podsAt, { metadata: { name: 'a', uid: 'uid-of-another' }, spec: { containers: [{ name: 'c' }] }, status });
    await acquire(two, text);
    api.intercept = ({ url = '' }) => url.startsWith(podsAt);
    await acquire(two, text);
    expect(two.marks().dead).toEqual([]);
  });
});

describe('on an NFS store', () => {
  async function exported(): Promise<(marks: ControllerMarks, hook?: CallInterceptor) => Promise<Store>> {
    const folder = mkdtempSync(join(tmpdir(), 'stowage-marks-'));
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    const directory = join(folder, 'export');
    mkdirSync(directory);
    const server = await createNfsServer({
      clock: systemClock(),
      directory,
      state: join(folder, 'state'),
      port: 0,
      path: '/export',
      squash: 'none',
      onError: () => undefined,
    });
    onTestFinished(() => server.close());
    const options = { port: String(server.port), mountport: String(server.port) };
    return async ({ marks }, hook = ({ make }) => make()) => {
      const kind = createNfsStoreKind(
        shortWaitClock(systemClock()),
        interceptCalls(createConnect(systemClock()), hook),
      );
      const uri = `nfs://${server.host}/export`;
      const store = await openNfs({ uri, options, instance: 'cluster', kind, marks: marks() });
      onTestFinished(() => store.close());
      return store;
    };
  }
  const spec = volumeSpec('a', { requestId: 'a', instance: 'cluster' });

  test('two controllers that both lead exclude each other', async () => {
    const open = await exported();
    const [one, two] = [await controller(), await controller()];
    await acquire(two, await acquire(one));
    const [reached, goOn] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const first = await open(one, async ({ procedure, make }) => {
      if (procedure === 'rename') {
        reached.resolve();
        await goOn.promise;
      }
      return make();
    });
    const second = await open(two);
    const volume = await second.create(spec, scope);
    const slow = first.label(volume, { x: 'slow' }, scope);
    await Promise.race([slow, reached.promise]);
    expect(await outcome(second.label(volume, { x: 'y' }, scope), 'reason')).toBe('volume-locked-elsewhere');
    goOn.resolve();
    await slow;
    expect((await second.label(volume, { x: 'y' }, scope)).revision).toBe(3);
  });

  test.skipIf(lacks('linux'))('a controller takes the locks of a dead one at once', async () => {
    const open = await exported();
    const [one, two] = [await controller(), await controller()];
    let hasVolume = false;
    let isDead = false;
    const first = await open(one, async ({ procedure, make }) => {
      if (isDead) throw new Error('killed');
      const answer = await make();
      isDead = procedure === 'create' && hasVolume;
      return answer;
    });
    const volume = await first.create(spec, scope);
    hasVolume = true;
    expect(await outcome(first.label(volume, { x: 'dead' }, scope), 'reason')).not.toBe('done');
    const text = await acquire(one);
    // A process that has no proof of the death has to wait.
    const stranger = await controller();
    await acquire(stranger, elsewhere(text));
    const waits = (await open(stranger)).label(volume, { x: 'y' }, scope);
    expect(await outcome(waits, 'reason')).toBe('volume-locked-elsewhere');
    await acquire(two, killed(text));
    expect((await (await open(two)).label(volume, { x: 'y' }, scope)).revision).toBe(2);
  });
});
