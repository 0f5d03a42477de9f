import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { type Stowage, startStowage } from './stowage.ts';

const exec = promisify(execFile);
let testFolder: string;
let server: Stowage | undefined;
const cleanups: (() => Promise<unknown>)[] = [];

beforeEach(async () => {
  testFolder = await realpath(await mkdtemp(join(tmpdir(), 'stowage-others-')));
});

afterEach(async () => {
  for (const step of cleanups.splice(0).reverse()) await step().catch(() => undefined);
  await server?.stop();
  server = undefined;
  await rm(testFolder, { recursive: true, force: true });
});

const start = async (): Promise<Stowage> => {
  server = await startStowage({ state: join(testFolder, 'state') });
  return server;
};

async function mount(...args: string[]): Promise<void> {
  await exec('mount', args);
  cleanups.push(() => exec('umount', [args.at(-1) ?? '']));
}

describe.skipIf(lacks('linux', 'root', 'mount'))('a mount made by another program', () => {
  test('at the path of a former volume target is left alone when Stowage stops', async () => {
    const stowage = await start();
    const target = join(testFolder, 'target');
    await mkdir(target);
    await stowage.api('POST', '/v1/volumes', { name: 'data' });
    expect((await stowage.api('POST', '/v1/volumes/data/mount', { target })).status).toBe(200);
    await exec('umount', [target]);
    await mount('-t', 'tmpfs', 'mine', target);
    await writeFile(join(target, 'precious'), 'kept');
    expect((await stowage.api('GET', '/v1/mounts')).body['items']).toMatchObject([{ target, mounted: false }]);
    await stowage.stop();
    expect(await readFile(join(target, 'precious'), 'utf8')).toBe('kept');
  });

  test('of a volume prevents its deletion, even if another mount hides it', async () => {
    const stowage = await start();
    const [target, bindTarget] = [join(testFolder, 'parent', 'target'), join(testFolder, 'elsewhere')];
    await mkdir(join(testFolder, 'parent'));
    await mkdir(bindTarget);
    await stowage.api('POST', '/v1/volumes', { name: 'data' });
    await stowage.api('POST', '/v1/volumes/data/mount', { target });
    await writeFile(join(target, 'file'), 'kept');
    // The test binds the volume to another path, and unmounts Stowage's own target.
    await mount('--bind', target, bindTarget);
    expect((await stowage.api('POST', '/v1/volumes/data/unmount', { target })).status).toBe(204);
    const bound = await stowage.api('DELETE', '/v1/volumes/data');
    expect(bound.body).toMatchObject({ status: 409, reason: 'volume-in-use' });
    expect(bound.body['detail']).toContain(bindTarget);
    await cleanups.pop()?.();
    // The test hides the mount with another mount over its parent directory.
    await stowage.api('POST', '/v1/volumes/data/mount', { target });
    await mount('-t', 'tmpfs', 'cover', join(testFolder, 'parent'));
    expect((await stowage.api('DELETE', '/v1/volumes/data')).body).toMatchObject({ status: 409 });
    await cleanups.pop()?.();
    expect(await readFile(join(target, 'file'), 'utf8')).toBe('kept');
    expect((await stowage.api('POST', '/v1/volumes/data/unmount', { target })).status).toBe(204);
    expect((await stowage.api('DELETE', '/v1/volumes/data')).status).toBe(200);
  });
});

describe.skipIf(lacks('linux', 'root', 'mount', 'loop', 'ext4'))('a loop device made by another program', () => {
  test('prevents the deletion of its image, and survives a restart if its file is in a volume', async () => {
    const stowage = await start();
    const images = join(testFolder, 'images');
    await mkdir(images);
    await stowage.api('POST', '/v1/stores', { name: 'images', uri: `local://${images}?layout=image` });
    await stowage.api('POST', '/v1/volumes', { store: 'images', name: 'disk', bytes: String(16 * 1024 * 1024) });
    const attach = async (file: string): Promise<string> => {
      const { stdout } = await exec('losetup', ['--find', '--show', file]);
      cleanups.push(() => exec('losetup', ['--detach', stdout.trim()]));
      return stdout.trim();
    };
    const device = await attach(join(images, 'disk.img'));
    const refused = await stowage.api('DELETE', '/v1/volumes/images..disk');
    expect(refused.body).toMatchObject({ status: 409, reason: 'volume-in-use' });
    expect(refused.body['detail']).toContain(device);
    await cleanups.pop()?.();
    expect((await stowage.api('DELETE', '/v1/volumes/images..disk')).status).toBe(200);

    await stowage.api('POST', '/v1/volumes', { store: 'local', name: 'plain' });
    const file = join(testFolder, 'state', 'stores', 'local', 'plain', 'disk.img');
    await writeFile(file, Buffer.alloc(1024 * 1024));
    const foreignDevice = await attach(file);
    await stowage.stop();
    await start();
    expect(
      (await exec('losetup', ['--list', '--noheadings', '--output', 'BACK-FILE', foreignDevice])).stdout.trim(),
    ).toBe(file);
  });
});

describe.skipIf(lacks('linux'))('a store', () => {
  test('is refused if its directory is, contains or is inside another store’s directory or the state folder', async () => {
    const stowage = await start();
    const outer = join(testFolder, 'outer');
    await mkdir(join(outer, 'inner'), { recursive: true });
    expect((await stowage.api('POST', '/v1/stores', { name: 'inner', uri: `local://${outer}/inner` })).status).toBe(
      201,
    );
    for (const uri of [
      `local://${outer}`,
      `local://${testFolder}`,
      `local://${testFolder}/state`,
      `local://${testFolder}/state/stores`,
    ]) {
      const refused = await stowage.api('POST', '/v1/stores', { name: 'outer', uri });
      expect(refused.body, uri).toMatchObject({ status: 400, reason: 'store-overlaps' });
    }
    expect((await readdir(outer)).sort()).toEqual(['inner']);
  });

  test('in the directory of another store is refused with the name of that store, unless both are read-only', async () => {
    const stowage = await start();
    await mkdir(join(testFolder, 'images'));
    await symlink(join(testFolder, 'images'), join(testFolder, 'link'));
    const add = (name: string, uri: string) => stowage.api('POST', '/v1/stores', { name, uri });
    expect((await add('img', `local://${testFolder}/images`)).status).toBe(201);
    for (const uri of [
      `local://${testFolder}/images`,
      `local://${testFolder}/images/?layout=image`,
      `local://${testFolder}/link`,
    ]) {
      expect((await add('again', uri)).body, uri).toMatchObject({
        status: 409,
        code: 'exists',
        reason: 'store-place-taken',
        detail: `store 'again' cannot use ${testFolder}/images: store 'img' already uses it`,
      });
    }
    expect((await add('look', `local://${testFolder}/images?readOnly=true`)).status).toBe(201);
    // After the deletion, the directory is free for another store.
    expect((await stowage.api('DELETE', '/v1/stores/img')).status).toBe(204);
    expect((await add('again', `local://${testFolder}/images`)).status).toBe(201);
  });

  test('that is a copy of another store does not get the volumes of the original', async () => {
    const stowage = await start();
    await mkdir(join(testFolder, 'a'));
    await stowage.api('POST', '/v1/stores', { name: 'a', uri: `local://${testFolder}/a` });
    const { body: made } = await stowage.api('POST', '/v1/volumes', { store: 'a', name: 'x' });
    await cp(join(testFolder, 'a'), join(testFolder, 'b'), { recursive: true });
    expect((await stowage.api('POST', '/v1/stores', { name: 'b', uri: `local://${testFolder}/b` })).status).toBe(201);
    const { body } = await stowage.api('POST', '/v1/stores/b/adopt', {});
    expect(body).toMatchObject({ adopted: [], skipped: [{ name: 'x' }] });
    expect((await stowage.api('GET', `/v1/volumes/${made['id']}`)).body).toMatchObject({ store: 'a', condition: 'ok' });
  });
});
