import { expect, test } from 'vitest';
import { silentLog } from '#base/log.ts';
import type { NfsConnection, Source } from '#core/model.ts';
import { mountTable, parseMountinfo } from '../mounter/mountinfo.ts';
import { mountByHost } from './nfs-host.ts';

// The kernels of the test machines have no NFS client, so only the command can be checked.

const way: NfsConnection = {
  client: 'host',
  addresses: ['10.10.2.4'],
  port: 2049,
  mountPort: undefined,
  root: '',
  connections: 1,
  sourcePorts: undefined,
  tls: undefined,
  network: undefined,
  squash: 'none',
  uid: 0,
  gid: 0,
  softMs: undefined,
  maxRead: 1_048_576,
  maxWrite: 1_048_576,
  locks: 'refused',
  readOnly: false,
  quota: undefined,
};
const sourceWith = (more: Partial<NfsConnection>, host = 'filer'): Extract<Source, { kind: 'nfs' }> => ({
  kind: 'nfs',
  hosts: [host],
  path: '/export/photos',
  way: { ...way, ...more },
});
const scope = { signal: new AbortController().signal, log: silentLog() };

async function commandsFor(source: Extract<Source, { kind: 'nfs' }>, mounts = ''): Promise<readonly string[]> {
  const commands: string[] = [];
  const run = async (tool: string, args: readonly string[]): Promise<string> => {
    commands.push([tool, ...args].join(' '));
    return '';
  };
  await mountByHost({ run, readTable: async () => mountTable(parseMountinfo(mounts)) }, source, '/s/mounts/v', scope);
  return commands;
}

test.each([
  [{}, 'vers=3,proto=tcp,port=2049,nosuid,nodev,hard,timeo=600,rsize=1048576,wsize=1048576,noresvport'],
  [
    { softMs: 5_000, mountPort: 20_048, connections: 4, sourcePorts: 'privileged', locks: 'node', readOnly: true },
    'vers=3,proto=tcp,port=2049,nosuid,nodev,mountport=20048,soft,retrans=1,timeo=50,rsize=1048576,wsize=1048576,nconnect=4,resvport,nolock,ro',
  ],
  [
    { softMs: 5_000, retries: 3, sync: true },
    'vers=3,proto=tcp,port=2049,nosuid,nodev,soft,retrans=3,timeo=50,rsize=1048576,wsize=1048576,noresvport,sync',
  ],
  [{ retries: 3 }, 'vers=3,proto=tcp,port=2049,nosuid,nodev,hard,timeo=600,rsize=1048576,wsize=1048576,noresvport'],
] as const)('a store with %j mounts with %s', async (more, options) => {
  expect(await commandsFor(sourceWith(more))).toEqual([`mount.nfs filer:/export/photos /s/mounts/v -o ${options}`]);
});

test('puts an IPv6 address in brackets', async () => {
  expect((await commandsFor(sourceWith({}, 'fd00::4')))[0]).toContain('mount.nfs [fd00::4]:/export/photos ');
});

test('leaves an existing mount unchanged', async () => {
  const root = '20 1 0:9 / / rw - ext4 /dev/sda rw\n';
  const existingMount = '30 20 0:40 / /s/mounts/v rw - nfs filer:/export/photos rw\n';
  expect(await commandsFor(sourceWith({}), `${root}${existingMount}`)).toEqual([]);
});
