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
const by = (more: Partial<NfsConnection>): Source => ({
  kind: 'nfs',
  hosts: ['nas'],
  path: '/export/a',
  way: { ...way, ...more },
});
/** As read back from the database. */
const kept = (source: Source): Source => JSON.parse(JSON.stringify(source));

function further(wanted: Source, staged: Source): { readonly source: Source; readonly warned: readonly Facts[] } {
  const warned: Facts[] = [];
  const log = { ...silentLog(), warn: (_: string, facts?: Facts) => void warned.push(facts ?? {}) };
  return { source: sharing.sharedSource(volume, wanted, kept(staged), log), warned };
}

test('refuses another mount of a volume with an enforced size where the size is not enforced', () => {
  expect(() => further(by({ quota }), by({}))).toThrow(
    expect.objectContaining({
      code: 'conflict',
      reason: 'enforcement-needs-unmount',
      action: expect.stringContaining('Unmount it everywhere on this node'),
    }),
  );
  const larger = { ...quota, bytes: 2048 };
  expect(further(by({ quota: larger }), by({ quota }))).toEqual({ source: kept(by({ quota })), warned: [] });
});

test('another mount has the options of the first one, and the log names those that differ', () => {
  const first = by({ softMs: 1000, tls: { folder: undefined } });
  const { source, warned } = further(by({ squash: 'all' }), first);
  expect(source).toEqual(kept(first));
  expect(warned).toEqual([{ volume: 'silver/photos', differing: ['tls', 'squash', 'softMs'] }]);
});

test('logs another group of the next pod, and keeps the first one', () => {
  const first = by({ squash: 'all', group: 2000 });
  const { source, warned } = further(by({ squash: 'all', group: 3000 }), first);
  expect(source).toEqual(kept(first));
  expect(warned).toEqual([{ volume: 'silver/photos', differing: ['group'] }]);
});

test('ignores a changed address of the server', () => {
  const moved = by({ addresses: ['10.0.0.2'], port: 20490, root: 'BB==' });
  expect(further(moved, by({}))).toEqual({ source: kept(by({})), warned: [] });
});

test("replaces a dead mount with the same options at the server's current address", () => {
  const dead = kept(by({ softMs: 1000, squash: 'all', group: 2000 }));
  const now = by({ addresses: ['10.0.0.2'], port: 20490, root: 'BB==', quota });
  const moved = { ...now, hosts: ['filer'], path: '/export/b' } as const;
  expect(sharing.remountSource(dead, moved)).toEqual({
    ...moved,
    way: { ...dead.way, addresses: ['10.0.0.2'], port: 20490, root: 'BB==', quota },
  });
});

test('adds the options of a mount once, and nothing without a group', () => {
  const source = by({ squash: 'all' });
  const use = { readOnly: true, group: 2000 };
  const once = nfsSources.withMountOptions(source, use);
  expect(once).toEqual(by({ squash: 'all', group: 2000 }));
  expect(JSON.stringify(nfsSources.withMountOptions(once, use))).toBe(JSON.stringify(once));
  expect(nfsSources.withMountOptions(source, { ...use, group: undefined })).toBe(source);
});
