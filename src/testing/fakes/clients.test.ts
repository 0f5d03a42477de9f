import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NodeName, SourceKind, SourceOf } from '#core/model.ts';
import { newVolumeId } from '#core/names.ts';
import type { Client } from '#core/ports.ts';
import { type ClientUnderTest, clientContract } from '../contracts/client.ts';
import { createFakeClients, type FakeClients } from './clients.ts';
import { createFakeMounts } from './mounts.ts';

async function under<K extends SourceKind>(
  choose: (
    clients: FakeClients,
    folder: string,
    at: string,
  ) => { client: Client<K>; source: SourceOf<K> } & Partial<ClientUnderTest<K>>,
): Promise<ClientUnderTest<K>> {
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'stowage-fakes-')));
  mkdirSync(join(folder, 'mounts'));
  const at = join(folder, 'mounts', newVolumeId());
  const mounts = createFakeMounts();
  return {
    mounter: mounts.mounter,
    at,
    occupy: (place) => void mounts.mount(place, { source: 'test', type: 'tmpfs' }),
    use: mounts.use,
    [Symbol.asyncDispose]: async () => rmSync(folder, { recursive: true }),
    ...choose(createFakeClients(mounts), folder, at),
  };
}

const node = 'here' as NodeName;
const nfsSource: SourceOf<'nfs'> = {
  kind: 'nfs',
  hosts: ['filer'],
  path: '/export/a',
  way: {
    client: 'built-in',
    addresses: ['10.0.0.1'],
    port: 2049,
    mountPort: undefined,
    root: 'cm9vdA==',
    connections: 1,
    sourcePorts: undefined,
    tls: { folder: undefined },
    network: undefined,
    squash: 'none',
    uid: 0,
    gid: 0,
    softMs: undefined,
    maxRead: 65_536,
    maxWrite: 65_536,
    locks: 'node',
    readOnly: false,
    quota: { bytes: 1024, ledger: 'bGVkZ2Vy' },
  },
};

clientContract(
  'the directory client on the fake mounter',
  () =>
    under<'directory'>(({ directory }, folder) => {
      const path = join(folder, 'volume');
      mkdirSync(path);
      const lose = (): void => rmSync(path, { recursive: true });
      const sharedPaths = { whole: path, part: join(path, 'sub') };
      return { client: directory, source: { kind: 'directory', node, path }, lose, sharedPaths };
    }),
  { lose: true, sharedPaths: true },
);

clientContract(
  'the fake loop client',
  () =>
    under<'loop'>(({ loop }, folder) => {
      const path = join(folder, 'volume.img');
      writeFileSync(path, '');
      return { client: loop, source: { kind: 'loop', node, path, filesystem: 'ext4' }, lose: () => rmSync(path) };
    }),
  { lose: true },
);

clientContract(
  'the fake NFS client',
  () =>
    under<'nfs'>(({ nfs }, _folder, at) => ({
      client: nfs,
      source: nfsSource,
      kill: () => nfs.kill(at),
      hang: nfs.hang,
      copy: nfs.copy,
    })),
  { kill: true, sharing: true },
);
