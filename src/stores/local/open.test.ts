import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { lacks } from '#testbed/lacks.ts';
import { asOrdinaryUser } from '#testbed/ordinary-user.ts';
import { scope } from '#testing/contracts/store.ts';
import { openLocal } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';
import type { FileStore } from '../file-store/verbs.ts';
import { createLocalStoreKind } from './kind.ts';

let root: string;
const openStores: FileStore[] = [];
const open = async (...args: Parameters<typeof openLocal>): Promise<FileStore> => {
  const store = await openLocal(...args);
  openStores.push(store);
  return store;
};

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'stowage-open-'));
});
afterEach(async () => {
  for (const store of openStores.splice(0)) await store.close();
  await rm(root, { recursive: true, force: true });
});

async function makeVolume(store: FileStore, name: string): Promise<void> {
  const spec = {
    id: newVolumeId(),
    name: volumeName(name),
    bytes: undefined,
    access: 'filesystem',
    labels: {},
  } as const;
  await store.create({ ...spec, requestId: 'r', createdAt: 0, instance: 'instance-1' }, scope);
}

async function refusal(work: Promise<unknown>): Promise<StowageError> {
  const thrown = await work.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  if (thrown instanceof StowageError) return thrown;
  throw new Error(`expected a StowageError, got ${String(thrown)}`);
}

/** The command of a process that opens the store and prints the result. With 'hold' it keeps the store open. */
function openerCommand(storePath: string, then: 'hold' | 'end', options = '{}'): string[] {
  const kind = pathToFileURL(join(import.meta.dirname, 'kind.ts')).href;
  const code = `
    const { createLocalStoreKind } = await import(${JSON.stringify(kind)});
    const log = { debug() {}, info() {}, warn() {}, error() {}, with() { return log } };
    const policy = { onDelete: 'delete', retention: 0, readOnly: false };
    const config = { name: 'other', uri: 'local://' + ${JSON.stringify(storePath)}, origin: 'api', policy, options: ${options} };
    const scope = { signal: new AbortController().signal, log };
    try {
      await createLocalStoreKind().open(config, policy, { instance: 'instance-2', node: 'node-2' }, scope);
      console.log('{"opened":true}');
      if (${JSON.stringify(then)} === 'hold') setInterval(() => undefined, 1000);
    } catch ({ code, reason, message, action }) {
      console.log(JSON.stringify({ code, reason, message, action }));
    }`;
  return [process.execPath, '--disable-warning=ExperimentalWarning', '--input-type=module', '-e', code];
}

function openInOtherProcess(storePath: string): unknown {
  const [file = '', ...args] = openerCommand(storePath, 'end');
  return JSON.parse(spawnSync(file, args, { encoding: 'utf8' }).stdout);
}

describe('a store in use', () => {
  test('is refused to another process, with the holder in the error', async () => {
    await open(root);
    expect(openInOtherProcess(root)).toEqual({
      code: 'conflict',
      reason: 'store-locked',
      message: `the store in ${root} is in use by Stowage instance instance-1 (process ${process.pid} on node-1)`,
      action: 'Stop that instance first, or use another directory: only one instance can open a local store.',
    });
  });

  test('is refused to the same process, also through another path', async () => {
    await open(root);
    await symlink(root, `${root}-link`);
    try {
      expect((await refusal(open(`${root}-link`))).reason).toBe('store-locked');
      // The refused attempt must not have released the lock, as closing any descriptor of a bare fcntl lock would.
      expect(openInOtherProcess(root)).toMatchObject({ reason: 'store-locked' });
    } finally {
      await rm(`${root}-link`);
    }
  });

  test('is free again when it is closed', async () => {
    const store = await openLocal(root);
    await store.close();
    await open(root);
  });

  test('is free again when its holder is killed', async () => {
    const [file = '', ...args] = openerCommand(root, 'hold');
    const holder = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const ended = once(holder, 'exit');
    try {
      await once(holder.stdout, 'data');
      const error = await refusal(open(root));
      expect(error.message).toBe(
        `the store in ${root} is in use by Stowage instance instance-2 (process ${holder.pid} on node-2)`,
      );
    } finally {
      holder.kill('SIGKILL');
      await ended;
    }
    await open(root);
  });

  test('can be opened read-only by others', async () => {
    await open(root);
    const reader = await open(root, { readOnly: true });
    expect((await refusal(makeVolume(reader, 'a'))).reason).toBe('store-read-only');
  });
});

describe('the root directory', () => {
  test('must exist', async () => {
    const error = await refusal(open(join(root, 'nothing')));
    expect([error.code, error.reason, error.message]).toEqual([
      'unavailable',
      'store-root-missing',
      `the store's directory ${root}/nothing does not exist`,
    ]);
  });

  test('must be a directory', async () => {
    await writeFile(join(root, 'file'), '');
    expect((await refusal(open(join(root, 'file')))).reason).toBe('store-root-not-directory');
    expect((await refusal(open(join(root, 'file', 'x')))).reason).toBe('store-root-missing');
  });

  test('keeps its layout', async () => {
    await (await openLocal(root)).close();
    const error = await refusal(open(root, { options: { layout: 'image' } }));
    expect([error.code, error.reason, error.message]).toEqual([
      'conflict',
      'layout-differs',
      `the store in ${root} has layout directory, not image`,
    ]);
    expect((await refusal(open(root, { options: { layout: 'image' }, readOnly: true }))).reason).toBe('layout-differs');
    // The refused attempts released the lock.
    await open(root);
  });

  test('is refused when a newer Stowage wrote it', async () => {
    await mkdir(join(root, '.stowage'), { mode: 0o700 });
    await writeFile(join(root, '.stowage', 'store.json'), '{"version": 2, "layout": "directory"}');
    const error = await refusal(open(root));
    expect([error.code, error.reason]).toEqual(['unsupported', 'format-newer']);
    expect(error.message).toBe(`${root}/.stowage/store.json has format version 2; this Stowage knows versions up to 1`);
  });

  test.each(['', 'nonsense', '[]', '{}', '{"version":"1"}'])('is refused when its identity reads %j', async (text) => {
    await mkdir(join(root, '.stowage'), { mode: 0o700 });
    await writeFile(join(root, '.stowage', 'store.json'), text);
    expect((await refusal(open(root))).reason).toBe('record-unreadable');
  });

  test('has records that only this user can read', async () => {
    await mkdir(join(root, '.stowage'));
    await chmod(join(root, '.stowage'), 0o777);
    await open(root);
    expect((await stat(join(root, '.stowage'))).mode & 0o777).toBe(0o700);
  });

  test('is refused when .stowage is a symbolic link', async () => {
    await mkdir(join(root, 'elsewhere'));
    await symlink(join(root, 'elsewhere'), join(root, '.stowage'));
    const error = await refusal(open(root));
    expect([error.code, error.reason, error.action]).toEqual([
      'denied',
      'store-records-foreign',
      `Move ${root}/.stowage away.`,
    ]);
    expect(await readdir(join(root, 'elsewhere'))).toEqual([]);
  });

  test('is refused when the lock is a symbolic link', async () => {
    await mkdir(join(root, '.stowage'), { mode: 0o700 });
    await writeFile(join(root, 'precious'), 'precious');
    await symlink(join(root, 'precious'), join(root, '.stowage', 'lock'));
    expect((await refusal(open(root))).reason).toBe('store-lock-irregular');
    expect(await readFile(join(root, 'precious'), 'utf8')).toBe('precious');
  });

  test('is not changed by a read-only store', async () => {
    await mkdir(join(root, 'data'));
    const store = await open(root, { readOnly: true });
    await Array.fromAsync(store.list(scope));
    expect((await store.check(scope)).ok).toBe(true);
    expect(await readdir(root, { recursive: true })).toEqual(['data']);
  });
});

describe('the root directory of a known store', () => {
  const storeFile = (): string => join(root, '.stowage', 'store.json');
  const createKnownStore = async (): Promise<string | undefined> => {
    const store = await openLocal(root);
    await store.close();
    return store.identity;
  };

  test('is opened, and has its id', async () => {
    const identity = await createKnownStore();
    expect(identity).toMatch(/^[0-9a-f-]{36}$/);
    expect((await open(root, { identity })).identity).toBe(identity);
    expect((await open(root, { identity, readOnly: true })).identity).toBe(identity);
  });

  test.each([false, true])(
    'is refused when it is empty, and nothing is written there (readOnly %j)',
    async (readOnly) => {
      const error = await refusal(open(root, { identity: 'before', readOnly }));
      expect([error.code, error.reason, error.message, error.action]).toEqual([
        'unavailable',
        'store-identity',
        `${root} is not the expected store: it is empty; its disk may not be mounted`,
        'Mount the disk that holds the store. To make this directory the store: stowage store adopt test',
      ]);
      expect(await readdir(root)).toEqual([]);
    },
  );

  test('is refused if it has other files, and nothing is written', async () => {
    await mkdir(join(root, 'data'));
    const error = await refusal(open(root, { identity: 'before' }));
    expect([error.reason, error.message]).toEqual([
      'store-identity',
      `${root} is not the expected store: it has no .stowage/store.json; its disk may not be mounted`,
    ]);
    expect(await readdir(root, { recursive: true })).toEqual(['data']);
  });

  test.each([false, true])('is refused if it has another store (readOnly %j)', async (readOnly) => {
    const identity = await createKnownStore();
    await rm(join(root, '.stowage', 'owner.json'));
    const error = await refusal(open(root, { identity: 'before', readOnly }));
    expect([error.code, error.reason, error.message]).toEqual([
      'unavailable',
      'store-identity',
      `${root} is not the expected store: it is store ${identity}; expected before`,
    ]);
    expect(await readdir(join(root, '.stowage'))).not.toContain('owner.json');
  });

  test('is opened when it has no identity, and gets one', async () => {
    await createKnownStore();
    await writeFile(storeFile(), '{"version":0,"layout":"directory"}');
    const { identity } = await open(root, { identity: 'before' });
    expect(JSON.parse(await readFile(storeFile(), 'utf8'))).toEqual({
      version: 1,
      store: identity,
      layout: 'directory',
    });
  });
});

describe('the root of an open store', () => {
  const calls = (store: FileStore): (() => Promise<unknown>)[] => {
    const ref = { id: 'sv1-00000000-0000-4000-8000-000000000001', name: 'a' } as Parameters<FileStore['delete']>[0];
    return [
      () => store.names(scope),
      () => store.get(ref.name, scope),
      () => store.delete(ref, scope),
      () =>
        store.create(
          {
            ...ref,
            bytes: undefined,
            access: 'filesystem',
            labels: {},
            requestId: 'r',
            createdAt: 0,
            instance: 'instance-1',
          },
          scope,
        ),
      () => store.trash.put(ref, keptForAWeek(0), scope),
      () => store.housekeeping.sweep(scope),
      () => store.housekeeping.orphans(scope),
    ];
  };

  test('that was deleted makes every call fail; no call reports a volume as absent or creates a file', async () => {
    const store = await open(root);
    await rm(root, { recursive: true });
    for (const call of calls(store)) {
      const error = await refusal(call());
      expect([error.code, error.reason]).toEqual(['unavailable', 'store-root-missing']);
    }
    expect((await store.check(scope)).steps).toEqual([
      {
        step: 'resolve',
        ok: false,
        detail: `the store's directory ${root} does not exist`,
        action: `Mount the disk that holds it, or create the directory if the store is new: mkdir -p ${root}`,
        reason: 'store-root-missing',
      },
    ]);
  });

  test('that was replaced by another directory, as after an unmount, makes every call fail', async () => {
    const store = await open(root);
    await rename(root, `${root}-old`);
    await mkdir(root);
    try {
      for (const call of calls(store)) {
        const error = await refusal(call());
        expect([error.code, error.reason, error.message]).toEqual([
          'unavailable',
          'store-root-changed',
          `${root} is no longer the directory that the store was opened in`,
        ]);
      }
      expect(await readdir(root)).toEqual([]);
    } finally {
      await rm(`${root}-old`, { recursive: true });
    }
  });
});

describe('options', () => {
  const kind = createLocalStoreKind();

  test.each([
    [
      { colour: 'blue' },
      "a local store has no option 'colour'",
      'Options of a local store: layout, uid, gid, mode, filesystem.',
    ],
    [{ layout: 'tape' }, "'tape' is not a value for the option layout", 'Use one of: directory, image.'],
    [
      { layout: 'image', filesystem: 'ntfs' },
      "'ntfs' is not a value for the option filesystem",
      'Use one of: xfs, ext4.',
    ],
    [{ filesystem: 'xfs' }, 'the option filesystem is only for layout=image', 'Leave it out, or add layout=image.'],
    [{ uid: 'root' }, "'root' is not a value for the option uid", 'Give the number, for example uid=1000.'],
    [{ gid: '-1' }, "'-1' is not a value for the option gid", 'Give the number, for example gid=1000.'],
    [{ uid: '4294967295' }, "'4294967295' is not a value for the option uid", 'Give the number, for example uid=1000.'],
    [
      { mode: '999' },
      "'999' is not a value for the option mode",
      'Give three or four octal digits, for example mode=0770.',
    ],
  ])('%j is refused', async (options, message, action) => {
    const error = await refusal(open(root, { options: options as Record<string, string> }));
    expect([error.code, error.message, error.action]).toEqual(['invalid', message, action]);
    expect(await readdir(root)).toEqual([]);
  });

  test.each(['local://srv/data', 'local:/srv', 'nfs:///srv', 'local://%zz', 'local:///', 'local:///a%00b'])(
    'the URI %s is refused',
    async (uri) => {
      const config = { name: 'test', uri, origin: 'api', options: {} } as unknown as Parameters<typeof kind.open>[0];
      const policy = { readOnly: false } as Parameters<typeof kind.open>[1];
      const context = { instance: 'i', node: 'n' } as unknown as Parameters<typeof kind.open>[2];
      expect((await refusal(kind.open(config, policy, context, scope))).code).toBe('invalid');
    },
  );

  test('a path with spaces and percent signs is taken literally', async () => {
    await mkdir(join(root, 'a b%'));
    const store = await open(join(root, 'a%20b%25'));
    expect((await store.check(scope)).steps[0]?.detail).toBe(`${root}/a b% is ${root}/a b%`);
  });

  test('a volume gets the mode of the options, whatever the umask', async () => {
    const before = process.umask(0o077);
    try {
      const store = await open(root, { options: { mode: '2775' } });
      await makeVolume(store, 'a');
      expect((await stat(join(root, 'a'))).mode & 0o7777).toBe(0o2775);
    } finally {
      process.umask(before);
    }
  });

  test.skipIf(lacks('root'))('a volume gets the uid and gid of the options', async () => {
    const store = await open(root, { options: { uid: '1234', gid: '5678' } });
    await makeVolume(store, 'a');
    expect(await stat(join(root, 'a'))).toMatchObject({ uid: 1234, gid: 5678 });
  });

  test.skipIf(lacks('ordinary-user'))(
    'an ordinary user cannot open a store whose volumes belong to another user',
    async () => {
      await chmod(root, 0o777);
      const [file, args] = asOrdinaryUser(openerCommand(root, 'end', '{"uid":"0"}'));
      expect(JSON.parse(spawnSync(file, [...args], { encoding: 'utf8' }).stdout)).toEqual({
        code: 'denied',
        reason: 'owner-denied',
        message: 'store other cannot create volumes owned by uid 0: this user may not change the owner of files',
        action: "Run Stowage as root, or remove the store's options uid and gid.",
      });
    },
  );

  test.skipIf(lacks('ordinary-user', 'root'))(
    'an ordinary user cannot open a store in a directory of another user',
    async () => {
      await chmod(root, 0o755);
      const [file, args] = asOrdinaryUser(openerCommand(root, 'end'));
      expect(JSON.parse(spawnSync(file, [...args], { encoding: 'utf8' }).stdout)).toMatchObject({
        code: 'denied',
        reason: 'store-permission',
        message: `opening store other failed: permission denied in ${root} for the user that Stowage runs as`,
      });
    },
  );
});

test('a # in the URI is refused', async () => {
  await mkdir(join(root, 'a'));
  await mkdir(join(root, 'a#b'));
  const failure = await refusal(open(`${root}/a#b`));
  expect([failure.code, failure.message, failure.action]).toEqual([
    'invalid',
    `'local://${root}/a#b' has a # in it, where a URI's path ends`,
    'Write a literal # as %23, or leave it out.',
  ]);
  await open(`${root}/a%23b`);
  expect(await readdir(join(root, 'a#b'))).toEqual(['.stowage']);
  expect(await readdir(join(root, 'a'))).toEqual([]);
});

describe.skipIf(lacks('root', 'mount'))('on an overlay', () => {
  test('directories of the lower layer cannot be moved, and the error says what to do', async () => {
    const at = (name: string): string => join(root, name);
    for (const name of ['disk', 'merged']) await mkdir(at(name));
    // An overlay cannot have another overlay, which the machine's own root may be, as its upper layer.
    spawnSync('mount', ['-t', 'tmpfs', 'stowage-test', at('disk')]);
    for (const name of ['disk/lower', 'disk/upper', 'disk/work', 'disk/lower/a']) await mkdir(at(name));
    await writeFile(at('disk/lower/a/file'), 'x');
    const layers = `lowerdir=${at('disk/lower')},upperdir=${at('disk/upper')},workdir=${at('disk/work')},redirect_dir=off`;
    const mounted = spawnSync('mount', ['-t', 'overlay', '-o', layers, 'stowage-test', at('merged')]);
    try {
      expect(mounted.status, mounted.stderr.toString()).toBe(0);
      const store = await open(at('merged'));
      const spec = { id: newVolumeId(), name: volumeName('a'), bytes: undefined, access: 'filesystem' } as const;
      const made = { ...spec, labels: {}, requestId: 'r', createdAt: 0, instance: 'instance-1' };
      const volume = await store.adoption.adopt(spec.name, made, scope);
      const failure = await refusal(store.rename(volume, volumeName('b'), scope));
      expect([failure.code, failure.reason]).toEqual(['unsupported', 'store-cannot-move']);
      expect(failure.message).toContain(`the file system of ${at('merged')} cannot move data within the store`);
      expect((await store.get(spec.name, scope))?.condition).toBe('ok');
      expect((await refusal(store.delete(volume, scope))).reason).toBe('store-cannot-move');
      expect(await readFile(join(at('merged'), 'a', 'file'), 'utf8')).toBe('x');
    } finally {
      // An open store would keep the mount.
      for (const store of openStores.splice(0)) await store.close();
      for (const name of ['merged', 'disk']) spawnSync('umount', [at(name)]);
    }
  });
});
