import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { createRpcClient } from '../../rpc/client.ts';
import { findPort, getPort } from '../../rpc/portmap.ts';
import type { Procedure } from '../../rpc/procedure.ts';
import { createNfsClient } from '../client.ts';
import { listExports, mnt, mountProgram, mountVersion, unmnt } from '../mount.ts';
import { getattr } from '../procedures.ts';
import { nfsProgram, nfsVersion } from '../structures.ts';

const mountProcedure = (number: number, name: string) => ({
  program: mountProgram,
  version: mountVersion,
  number,
  name,
});
const dump: Procedure<undefined, [string, string][]> = {
  ...mountProcedure(2, 'DUMP'),
  encode: () => undefined,
  decode: (reader) => {
    const all: [string, string][] = [];
    while (reader.bool()) all.push([reader.string(255), reader.string(4096)]);
    return all;
  },
};
const unmountAll: Procedure<undefined, undefined> = {
  ...mountProcedure(4, 'UMNTALL'),
  encode: () => undefined,
  decode: () => undefined,
};

describe.skipIf(lacks('linux'))('MOUNT', () => {
  test('returns the export and directories in it by the path that clients use', async () => {
    const own = await startOwnServer({ path: '/export/data', networks: ['127.0.0.0/8', '::1'] });
    fs.mkdirSync(join(own.directory, 'a', 'bä'), { recursive: true });
    fs.writeFileSync(join(own.directory, 'f'), '');
    fs.symlinkSync(own.outside, join(own.directory, 'link'));
    const rpc = own.rpc();
    const nfs = createNfsClient(rpc, systemClock());
    const { handle, flavors } = await rpc.call(mnt, '/export/data');
    expect(flavors).toEqual([1]);
    expect((await rpc.call(mnt, '//export/./data/')).handle).toEqual(handle);
    const { handle: inner } = await rpc.call(mnt, '/export/data/a/bä');
    expect((await nfs.getattr(inner)).fileId).toBe(BigInt(fs.statSync(join(own.directory, 'a', 'bä')).ino));
    for (const [path, statusName] of [
      ['/', 'NOENT'],
      ['/export', 'NOENT'],
      ['/export/data2', 'NOENT'],
      ['/export/data/none', 'NOENT'],
      ['/export/data/f', 'NOTDIR'],
      ['/export/data/link', 'NOTDIR'],
      ['/export/data/..', 'INVAL'],
      ['/export/data/a/../../..', 'INVAL'],
      [`/export/data/${'x'.repeat(256)}`, 'INVAL'],
      ['/export/data/a\0b', 'INVAL'],
    ] as const)
      await expect(rpc.call(mnt, path), path).rejects.toMatchObject({ statusName });
    expect(await rpc.call(listExports, undefined)).toEqual([{ path: '/export/data', clients: ['127.0.0.0/8', '::1'] }]);
    const remembered = (await rpc.call(dump, undefined)).map(([, path]) => path);
    expect(remembered).toEqual(['/export/data', '//export/./data/', '/export/data/a/bä']);
    await rpc.call(unmnt, '/export/data');
    expect(await rpc.call(dump, undefined)).toHaveLength(2);
    await rpc.call(unmountAll, undefined);
    expect(await rpc.call(dump, undefined)).toEqual([]);
  });

  test('remembers a limited number of mounts', async () => {
    const own = await startOwnServer();
    const rpc = own.rpc();
    await Promise.all(Array.from({ length: 1500 }, (_, i) => rpc.call(mnt, '/'.repeat(i + 1))));
    expect(await rpc.call(dump, undefined)).toHaveLength(1024);
  });
});

describe.skipIf(lacks('linux'))('the portmapper', () => {
  test('returns the ports of the programs, in all three versions', async () => {
    const own = await startOwnServer({ portmap: { port: 0 } });
    const { port, portmapPort = 0 } = own.server;
    const rpc = createRpcClient({ clock: systemClock(), addresses: [{ host: '127.0.0.1', port: portmapPort }] });
    onTestFinished(() => rpc.close());
    for (const network of ['tcp', 'tcp6'] as const) {
      expect(await findPort(rpc, { program: nfsProgram, version: nfsVersion }, network, {})).toBe(port);
      expect(await findPort(rpc, { program: mountProgram, version: mountVersion }, network, {})).toBe(port);
      expect(await findPort(rpc, { program: 100021, version: 4 }, network, {})).toBeUndefined();
    }
    const udp: typeof getPort = {
      ...getPort,
      encode: (writer, { program, version }) => void writer.u32(program).u32(version).u32(17).u32(0) as undefined,
    };
    expect(await rpc.call(udp, { program: nfsProgram, version: nfsVersion })).toBe(0);
    const list: Procedure<undefined, number[][]> = {
      program: 100000,
      version: 2,
      number: 4,
      name: 'PMAP DUMP',
      encode: () => undefined,
      decode: (reader) => {
        const all: number[][] = [];
        while (reader.bool()) all.push([reader.u32(), reader.u32(), reader.u32(), reader.u32()]);
        return all;
      },
    };
    expect(await rpc.call(list, undefined)).toEqual([
      [nfsProgram, 3, 6, port],
      [mountProgram, 3, 6, port],
    ]);
  });
});

describe.skipIf(lacks('linux'))('the server accepts calls', () => {
  async function isRefused(own: OwnServer): Promise<boolean> {
    const socket = connect(own.server.port, '127.0.0.1');
    return await new Promise((resolve) => {
      socket.on('close', () => resolve(true));
      socket.on('error', () => resolve(true));
      socket.setTimeout(500, () => {
        socket.destroy();
        resolve(false);
      });
    });
  }

  test('only from the configured networks', async () => {
    expect(await isRefused(await startOwnServer({ networks: ['10.0.0.0/8'] }))).toBe(true);
    expect(await isRefused(await startOwnServer({ networks: ['127.0.0.0/8'] }))).toBe(false);
    await expect(startOwnServer({ networks: ['nonsense'] })).rejects.toThrow('"nonsense" is not a network');
  });

  test.skipIf(lacks('ipv6'))('over IPv6, too', async () => {
    const own = await startOwnServer({ host: '::1', networks: ['::1'] });
    const { nfs, root } = await own.mount();
    expect((await nfs.getattr(root)).type).toBe(2);
  });

  test('only with encryption, if that is required', async () => {
    const own = await startOwnServer({ tls: { options: {}, required: true } });
    const rpc = own.rpc();
    await createNfsClient(rpc, systemClock()).null();
    await expect(rpc.call(mnt, '/')).rejects.toMatchObject({ failure: 'denied' });
    await expect(rpc.call(getattr, Buffer.alloc(36))).rejects.toMatchObject({
      failure: 'denied',
      message: 'GETATTR: a stronger kind of authentication is required',
    });
  });
});

describe.skipIf(lacks('root'))('privileged source ports', () => {
  test('are required if the option says so', async () => {
    const own = await startOwnServer({ privilegedPorts: true });
    const rpc = own.rpc();
    await createNfsClient(rpc, systemClock()).null();
    await expect(rpc.call(mnt, '/')).rejects.toMatchObject({ failure: 'denied' });
    let port = 700 + (process.pid % 200);
    const { nfs, root } = await own.mount({ localPort: () => port++ });
    expect((await nfs.getattr(root)).type).toBe(2);
  });
});

describe.skipIf(lacks('openssl'))('an NFS server with TLS', () => {
  test('serves all operations, also on large files', async () => {
    const folder = fs.mkdtempSync(join(tmpdir(), 'stowage-nfs-tls-'));
    onTestFinished(() => fs.rmSync(folder, { recursive: true }));
    const [key, cert] = [join(folder, 'key'), join(folder, 'cert')];
    const subject = ['-subj', '/CN=server', '-addext', 'subjectAltName=IP:127.0.0.1'];
    const opensslArgs = [
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-days',
      '2',
    ];
    execFileSync('openssl', [...opensslArgs, '-keyout', key, '-out', cert, ...subject], { stdio: 'pipe' });
    const options = { key: fs.readFileSync(key), cert: fs.readFileSync(cert) };
    const own = await startOwnServer({ tls: { options, required: true } });
    const tls = { options: { ca: options.cert }, program: nfsProgram, version: nfsVersion };
    const { nfs, root } = await own.mount({ tls });
    const { handle } = await nfs.create(root, 'f', { mode: 'guarded', set: {} });
    const data = Buffer.alloc(1024 * 1024, 'encrypted');
    await Promise.all([0, 1, 2, 3].map((i) => nfs.write(handle, i * data.length, data, 0)));
    const into = Buffer.alloc(data.length);
    for (const i of [0, 1, 2, 3]) {
      expect(await nfs.read(handle, i * data.length, into)).toMatchObject({ count: data.length, isEnd: i === 3 });
      expect(into.equals(data)).toBe(true);
    }
  });
});
