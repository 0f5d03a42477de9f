import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser, ordinaryUid } from '#testbed/ordinary-user.ts';
import { createRpcClient } from '../../rpc/client.ts';
import { createNfsClient } from '../client.ts';
import { mnt } from '../mount.ts';

/** Starts the server in a separate process of an ordinary user, and returns its port. */
async function startServerAsUser(directory: string, state: string): Promise<number> {
  const program = `
    import { systemClock } from '#base/clock.ts';
    import { createNfsServer } from '#wire/nfs3/server/server.ts';
    const [directory, state] = ${JSON.stringify([directory, state])};
    const { port } = await createNfsServer({ clock: systemClock(), directory, state, port: 0 });
    process.stdout.write(String(port) + '\\n');`;
  const command = [process.execPath, '--input-type=module-typescript', '--disable-warning=ExperimentalWarning'];
  const [file, args] = asOrdinaryUser([...command, '--eval', program]);
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  onTestFinished(() => void child.kill());
  return await new Promise((resolve, reject) => {
    child.stdout.once('data', (text: Buffer) => resolve(Number(text.toString())));
    child.once('exit', (code) => reject(new Error(`the server ended with ${code}`)));
  });
}

describe.skipIf(lacks('linux', 'ordinary-user'))('a server that is not root', () => {
  test('serves its own files, to all callers as its own user, and no other files', async () => {
    const folder = fs.mkdtempSync(join(tmpdir(), 'stowage-nfs-user-'));
    onTestFinished(() => fs.rmSync(folder, { recursive: true }));
    const directory = join(folder, 'exported');
    fs.mkdirSync(join(directory, 'closed'), { recursive: true, mode: 0o755 });
    fs.writeFileSync(join(directory, 'mine'), 'x', { mode: 0o400 });
    const isRoot = process.getuid?.() === 0;
    const uid = isRoot ? ordinaryUid : (process.getuid?.() ?? 0);
    if (isRoot) for (const path of [folder, directory, join(directory, 'mine')]) fs.chownSync(path, uid, uid);
    fs.chmodSync(join(directory, 'closed'), isRoot ? 0o700 : 0o000);
    const port = await startServerAsUser(directory, join(folder, 'state'));
    const identity = { uid: 0, gid: 0, groups: [], machine: 'test' };
    const rpc = createRpcClient({ clock: systemClock(), addresses: [{ host: '127.0.0.1', port }], identity });
    onTestFinished(() => rpc.close());
    const nfs = createNfsClient(rpc, systemClock());
    const { handle: root } = await rpc.call(mnt, '/export');
    const { handle: newFolder } = await nfs.mkdir(root, 'd', { mode: 0o750 });
    await nfs.create(newFolder, 'f', { mode: 'guarded', set: { mode: 0o640 } });
    await nfs.symlink(newFolder, 'l', 'f', {});
    for (const name of ['d', 'd/f', 'd/l']) expect(fs.lstatSync(join(directory, name)).uid).toBe(uid);
    expect(fs.statSync(join(directory, 'd')).mode & 0o7777).toBe(0o750);
    const { handle: ownFile } = await nfs.lookup(root, 'mine');
    expect((await nfs.read(ownFile, 0, Buffer.alloc(4))).count).toBe(1);
    await expect(nfs.write(ownFile, 0, Buffer.from('y'), 0)).rejects.toMatchObject({ statusName: 'ACCES' });
    await expect(nfs.setattr(ownFile, { uid: uid + 1 })).rejects.toMatchObject({ statusName: 'PERM' });
    const { handle: closedFolder } = await nfs.lookup(root, 'closed');
    await expect(nfs.lookup(closedFolder, 'x')).rejects.toMatchObject({ statusName: 'ACCES' });
    await expect(nfs.create(closedFolder, 'x', { mode: 'guarded', set: {} })).rejects.toMatchObject({
      statusName: 'ACCES',
    });
  });
});
