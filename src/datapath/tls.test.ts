import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { needs } from '#testbed/needs.ts';
import { certificate } from '#testing/certificate.ts';
import { type Mood, startDoor } from '#testing/fickle-door.ts';
import { keepMounts } from '#testing/kept-mount.ts';
import { startOwnServer } from '#testing/own-nfs-server.ts';
import { run } from '#testing/workloads.ts';
import { nfsProgram, nfsVersion } from '#wire/nfs3/structures.ts';

describe.skipIf(needs('root', 'fuse', 'openssl'))('a server with TLS that is started anew', () => {
  test.each<Mood>(['resets', 'closes in the handshake'])(
    'and what is there meanwhile %s: hard goes on',
    { timeout: 60_000 },
    async (mood) => {
      const { key, cert } = certificate('server');
      const own = await startOwnServer({ tls: { options: { key, cert }, required: true } });
      const door = await startDoor(own.server);
      const wish = { options: { ca: cert }, program: nfsProgram, version: nfsVersion };
      const { root } = await own.mount({ tls: wish });
      await using mounts = await keepMounts();
      const source = { host: door.host, port: door.port, root: Buffer.from(root).toString('base64') };
      const tls = { ca: String(cert), certificate: undefined, key: undefined, serverName: undefined };
      const mount = await mounts.mount(source, { tls, cacheMs: 0 });
      writeFileSync(join(own.directory, 'file'), 'data');
      await run('cat', [mount.on('file')]);
      door.mood = mood;
      door.cut();
      const before = door.connections;
      const work = Promise.all([
        run('cat', [mount.on('file')]),
        run('mkdir', [mount.on('directory')]),
        run('sh', ['-c', 'echo new >"$1"', 'sh', mount.on('new')]),
      ]);
      work.catch(() => undefined);
      await expect.poll(() => door.connections - before, { timeout: 20_000 }).toBeGreaterThan(8);
      expect(await mount.waiting()).toBeGreaterThanOrEqual(3);
      door.mood = 'passes';
      expect((await work)[0].stdout).toBe('data');
      expect(readdirSync(own.directory).toSorted()).toEqual(['directory', 'file', 'new']);
      expect(readFileSync(join(own.directory, 'new'), 'utf8')).toBe('new\n');
      await run('umount', [mount.at]);
    },
  );
});
