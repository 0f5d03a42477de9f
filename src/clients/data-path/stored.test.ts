import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { silentLog } from '#base/log.ts';
import type { NfsConnection } from '#core/model.ts';
import { readMountSpec } from '#datapath/mount-spec.ts';
import { keeperSocketFd } from '#keeper/processes.ts';
import { createKeeperStarter, defaultKeeperName } from './keeper-starter.ts';
import { keeperName } from './keepers.ts';
import { mountSpecOf } from './nfs-mount-spec.ts';

/**
 * How 0.1 describes mounts to data paths. A keeper holds these lines across upgrades for as long as the mount exists, so they never change.
 * Add an optional field, or a new version that older data paths refuse.
 */
const lines = readFileSync(new URL('fixtures/mounts-1.jsonl', import.meta.url), 'utf8')
  .split('\n')
  .slice(0, -1);

const way: NfsConnection = {
  client: 'built-in',
  addresses: ['10.0.0.5'],
  port: 2049,
  mountPort: undefined,
  root: 'AAECAw==',
  connections: 2,
  sourcePorts: undefined,
  tls: undefined,
  network: undefined,
  squash: 'root',
  uid: 1000,
  gid: 1000,
  softMs: undefined,
  maxRead: 1_048_576,
  maxWrite: 524_288,
  locks: 'node',
  readOnly: false,
  quota: undefined,
};
const connections: readonly NfsConnection[] = [
  way,
  {
    ...way,
    addresses: ['10.0.0.5', 'fd00::5'],
    sourcePorts: 'privileged',
    squash: 'all',
    group: 2000,
    locks: 'refused',
    readOnly: true,
    softMs: 10_000,
    retries: 2,
    quota: { bytes: 2 ** 40, ledger: 'BAUG' },
  },
  { ...way, squash: 'none', sync: true, tls: { folder: undefined } },
];

test('mount specs are byte for byte those of 0.1', async () => {
  const specs = await Promise.all(
    connections.map((one) => mountSpecOf({ kind: 'nfs', hosts: ['nas'], path: '/export/a', way: one }, 'host-1')),
  );
  expect(specs.map((spec) => JSON.stringify(spec))).toEqual(lines);
});

test('a data path reads mount specs that 0.1 wrote', () => {
  const common = {
    addresses: ['10.0.0.5'],
    port: 2049,
    root: 'AAECAw==',
    connections: 2,
    privilegedPorts: false,
    uid: 1000,
    gid: 1000,
    readOnly: false,
    maxRead: 1_048_576,
    maxWrite: 524_288,
    cacheMs: 1000,
    locks: 'node',
  };
  expect(lines.map((line) => readMountSpec(JSON.parse(line)))).toEqual([
    { ...common, version: 1, squash: 'root', checks: 'kernel' },
    {
      ...common,
      version: 2,
      squash: 'all',
      checks: 'server',
      group: 2000,
      addresses: ['10.0.0.5', 'fd00::5'],
      privilegedPorts: true,
      locks: 'refused',
      readOnly: true,
      softMs: 30_000,
      quota: { bytes: 2 ** 40, ledger: 'BAUG', host: 'host-1' },
    },
    { ...common, version: 3, squash: 'none', checks: 'kernel', sync: true, tls: { serverName: 'nas' } },
  ]);
});

test('keepers that 0.1 started are found at the same sockets', () => {
  const starterOptions = { clock: systemClock(), log: silentLog(), version: '0.1.0' };
  expect(createKeeperStarter({ ...starterOptions, folder: '/run/stowage/keepers' }).socketOf('host')).toBe(
    '/run/stowage/keepers/host/sock',
  );
  const kinds = [undefined, '/run/netns/storage'].flatMap((network) =>
    [false, true].map((privilegedPorts) => ({ network, privilegedPorts })),
  );
  expect(kinds.map(keeperName)).toEqual(['host', 'host-low', 'net-c47d6202', 'net-c47d6202-low']);
  expect(defaultKeeperName).toBe('host');
  expect(keeperSocketFd).toBe(3);
});
