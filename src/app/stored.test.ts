import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { createMemoryRecords } from '#testing/fakes/records.ts';
import { type ControllerRegistry, readRegistry, writeRegistry } from './controller-registry.ts';
import { takeProcessMarks } from './process-marks.ts';
import { keepersFolder, prepareState } from './state-folder.ts';
import { claimRecord, recordedClaim } from './take-over/replacement-volume.ts';

test('the paths inside the state folder do not change', async () => {
  const folder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-state-')));
  onTestFinished(() => rm(folder, { recursive: true }));
  expect(await prepareState(folder, join(folder, 'run', 'stowage.sock'))).toEqual({
    path: folder,
    database: join(folder, 'state.db'),
    mounts: join(folder, 'mounts'),
    published: join(folder, 'published'),
    tokenFile: join(folder, 'token'),
    defaultStore: join(folder, 'stores', 'local'),
    nfs: { exported: join(folder, 'stores', 'nfs'), state: join(folder, 'nfs-server', 'network') },
  });
  expect(keepersFolder('/run/stowage/stowage.sock')).toBe('/run/stowage/keepers');
});

test("controllers of different versions read each other's processes from the Lease", () => {
  const registry: ControllerRegistry = {
    processes: [
      {
        mark: 20,
        kernel: { scope: 'boot-1 pid:[4026531836]', pid: 1, startTime: '4711' },
        pod: { name: 'stowage-controller-0', uid: 'uid-0' },
      },
      { mark: 30 },
    ],
    dead: [10, 11],
  };
  const text =
    '{"version":1,"processes":[{"mark":20,"kernel":{"scope":"boot-1 pid:[4026531836]","pid":1,"startTime":"4711"},' +
    '"pod":{"name":"stowage-controller-0","uid":"uid-0"}},{"mark":30}],"dead":[10,11]}';
  expect(writeRegistry(registry)).toBe(text);
  expect(readRegistry(text)).toEqual(registry);
});

test('a process takes over locks that a dead 0.1 process held in the same state folder', () => {
  using kept = createMemoryRecords();
  const records = kept.open();
  records.settings.set('process marks', '{"folder":"here","marks":[20,30]}');
  expect(takeProcessMarks(records, 'here').dead).toEqual([20, 30]);
  expect(takeProcessMarks(records, 'elsewhere').dead).toEqual([]);
});

test('a take-over by 0.1 can be undone', () => {
  const spec = { accessModes: ['ReadWriteOnce'], storageClassName: 'old' };
  const text = `{"metadata":{"name":"cart","namespace":"shop","annotations":{"a":"b"}},"spec":${JSON.stringify(spec)}}`;
  const metadata = {
    name: 'cart',
    namespace: 'shop',
    annotations: { a: 'b', 'pv.kubernetes.io/bind-completed': 'yes' },
  };
  const annotations = claimRecord({ metadata, spec: { ...spec, volumeName: 'pvc-1' } });
  expect(annotations).toEqual({ 'stowage.dev/taken-over-claim': text });
  expect(recordedClaim({ metadata: { name: 'pvc-1-stowage', annotations }, spec: {} })).toEqual(JSON.parse(text));
});
