import { expect, test } from 'vitest';
import { type Facts, silentLog } from '#base/log.ts';
import type { NfsConnection, SourceOf, Volume } from '#core/model.ts';
import { nfsSources } from './nfs-sharing.ts';

type Source = SourceOf<'nfs'>;
const { sharing } = nfsSources;

const volume = { store: 'silver', name: 'photos' } as Volume;
const way: NfsConnection = {
  client: 'built-in',
  addresses: ['10.0.0.1'],
  port: 2049,
  mountPort: undefined,
  root: 'AA==',
  connections: 1,
  sourcePorts: undefined,
  tls: undefined,
  network: undefined,
  squash: 'none',
  uid: 0,
  gid: 0,
  softMs: undefined,
  maxRead: 4096,
  maxWrite: 4096,
  locks: 'node',
  readOnly: false,
  quota: undefined,
};
const quota = { bytes: 1024, ledger: 'BAUG' };
const sourceWith = (more: Partial<NfsConnection>): Source => ({
  kind: 'nfs',
  hosts: ['nas'],
  path: '/export/a',
  way: { ...way, ...more },
});
/** As read back from the database. */
const asStored = (source: Source): Source => JSON.parse(JSON.stringify(source));

function joinStaged(requested: Source, staged: Source): { readonly source: Source; readonly warned: readonly Facts[] } {
  const warnings: Facts[] = [];
  const log = { ...silentLog(), warn: (_: string, facts?: Facts) => void warnings.push(facts ?? {}) };
  return { source: sharing.sharedSource(volume, requested, asStored(staged), log), warned: warnings };
}

test('refuses another mount of a volume with an enforced size if the stage does not enforce it', () => {
  expect(() => joinStaged(sourceWith({ quota }), sourceWith({}))).toThrow(
    expect.objectContaining({
      code: 'conflict',
      reason: 'enforcement-needs-unmount',
      action: expect.stringContaining('Unmount it everywhere on this node'),
    }),
  );
  const larger = { ...quota, bytes: 2048 };
  expect(joinStaged(sourceWith({ quota: larger }), sourceWith({ quota }))).toEqual({
    source: asStored(sourceWith({ quota })),
    warned: [],
  });
});

test('gives another mount the options of the first one, and logs the options that differ', () => {
  const first = sourceWith({ softMs: 1000, tls: { folder: undefined } });
  const { source, warned } = joinStaged(sourceWith({ squash: 'all' }), first);
  expect(source).toEqual(asStored(first));
  expect(warned).toEqual([{ volume: 'silver/photos', differing: ['tls', 'squash', 'softMs'] }]);
});

test('keeps the group of the first pod, and logs that the next pod has another one', () => {
  const first = sourceWith({ squash: 'all', group: 2000 });
  const { source, warned } = joinStaged(sourceWith({ squash: 'all', group: 3000 }), first);
  expect(source).toEqual(asStored(first));
  expect(warned).toEqual([{ volume: 'silver/photos', differing: ['group'] }]);
});

test('ignores a changed address of the server', () => {
  const moved = sourceWith({ addresses: ['10.0.0.2'], port: 20490, root: 'BB==' });
  expect(joinStaged(moved, sourceWith({}))).toEqual({ source: asStored(sourceWith({})), warned: [] });
});

test("replaces a dead mount with the same options at the server's current address", () => {
  const dead = asStored(sourceWith({ softMs: 1000, squash: 'all', group: 2000 }));
  const current = sourceWith({ addresses: ['10.0.0.2'], port: 20490, root: 'BB==', quota });
  const moved = { ...current, hosts: ['filer'], path: '/export/b' } as const;
  expect(sharing.remountSource(dead, moved)).toEqual({
    ...moved,
    way: { ...dead.way, addresses: ['10.0.0.2'], port: 20490, root: 'BB==', quota },
  });
});

test('adds the options of a mount once, and nothing without a group', () => {
  const source = sourceWith({ squash: 'all' });
  const use = { readOnly: true, group: 2000 };
  const withGroup = nfsSources.withMountOptions(source, use);
  expect(withGroup).toEqual(sourceWith({ squash: 'all', group: 2000 }));
  expect(JSON.stringify(nfsSources.withMountOptions(withGroup, use))).toBe(JSON.stringify(withGroup));
  expect(nfsSources.withMountOptions(source, { ...use, group: undefined })).toBe(source);
});
