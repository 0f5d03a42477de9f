import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { OperationId, StoreName, VolumeId, VolumeName } from '#core/model.ts';
import type { Records } from '#core/ports.ts';
import { lacks } from '#testbed/lacks.ts';
import { bytesOf, versionZero, volumeCount, volumeId } from './fixtures/make-version-0.ts';
import { openRecords } from './sqlite.ts';

let folder: string;
let path: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'stowage-records-'));
  path = join(folder, 'state.db');
});
afterEach(() => rmSync(folder, { recursive: true }));

function open(file = path): Records {
  const records = openRecords(file);
  onTestFinished(() => records.close());
  return records;
}

/** Opens the file like another program. */
function withDatabase<T>(use: (db: DatabaseSync) => T): T {
  const db = new DatabaseSync(path);
  try {
    return use(db);
  } finally {
    db.close();
  }
}

function refusal(at = path): StowageError {
  try {
    openRecords(at).close();
  } catch (thrown) {
    if (thrown instanceof StowageError) return thrown;
    throw thrown;
  }
  throw new Error('it was opened');
}

interface Writer {
  readonly child: ChildProcess;
  lines(): AsyncIterator<string>;
}

function startWriter(...args: string[]): Writer {
  const script = fileURLToPath(new URL('fixtures/writer.ts', import.meta.url));
  const child = spawn(process.execPath, [script, path, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: 30_000,
  });
  onTestFinished(() => {
    child.kill('SIGKILL');
  });
  const lines = createInterface({ input: child.stdout });
  return { child, lines: () => lines[Symbol.asyncIterator]() };
}

describe('the file', () => {
  test('is readable by its owner only, like its log', () => {
    const records = open();
    records.settings.set('a', '1');
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(statSync(`${path}-wal`).mode & 0o777).toBe(0o600);
  });

  test('loses the permissions of others when it is opened', () => {
    openRecords(path).close();
    chmodSync(path, 0o644);
    open();
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  test('contains the whole log after closing, and no other file is left', () => {
    const records = openRecords(path);
    records.settings.set('a', '1');
    records.close();
    expect(readdirSync(folder)).toEqual(['state.db']);
  });

  test('has a log that stays small, and is truncated after a large transaction', () => {
    const records = open();
    const logSize = (): number => statSync(`${path}-wal`).size;
    records.transaction(() => {
      for (let n = 0; n < 3000; n++) records.settings.set(`key-${n}`, 'x'.repeat(4000));
    });
    // Unlike other writes, these are not synced one by one: each sync has a checkpoint, which would shrink the log by itself.
    for (let n = 0; n < 5000; n++)
      records.idempotentResponses.put('same', { fingerprint: '', status: 200, body: 'x'.repeat(3000 + n), at: 0 });
    expect(logSize()).toBeLessThan(6 * 1024 * 1024);
  });
});

describe('a state folder that is in use', () => {
  test('rejects a second process at once, with the id of the first one', async () => {
    const writer = startWriter('hold');
    expect((await writer.lines().next()).value).toBe('open');
    const started = performance.now();
    const error = refusal();
    expect(performance.now() - started).toBeLessThan(4_000);
    const { pid } = writer.child;
    expect(error.message).toBe(`the state folder ${folder} is in use by another Stowage (process ${pid})`);
    expect(error.action).toBe(
      `Use the one that runs, stop it (kill ${pid}), or choose another folder with --state DIR.`,
    );
    expect(error).toMatchObject({ code: 'conflict', reason: 'state-locked' });
    // The rejected process must leave the lock and the holder file of the first one alone.
    expect(refusal().message).toContain(`(process ${pid})`);

    writer.child.kill('SIGKILL');
    await once(writer.child, 'exit');
    expect(open().settings.get('a')).toBeUndefined();
    expect(JSON.parse(readFileSync(join(folder, 'holder.json'), 'utf8'))).toMatchObject({ pid: process.pid });
  });

  test('rejects a second open in the same process, too, and the first one continues to work', () => {
    const first = open();
    expect(refusal()).toMatchObject({ reason: 'state-locked' });
    first.settings.set('a', '1');
    expect(first.settings.get('a')).toBe('1');
    expect(refusal()).toMatchObject({ reason: 'state-locked' });
  });

  test('has an error that does not name the process if the holder file is unreadable', () => {
    open();
    writeFileSync(join(folder, 'holder.json'), 'rubbish');
    expect(refusal().message).toBe(`the state folder ${folder} is in use by another Stowage`);
  });
});

describe('kill -9', () => {
  test.each([50, 400, 1500])(
    'after %d transactions loses none that was reported, and leaves none incomplete',
    async (kill) => {
      const writer = startWriter();
      let lastReported = -1;
      for (let lines = writer.lines(), line = await lines.next(); !line.done; line = await lines.next()) {
        if (line.value !== 'open') lastReported = Number(line.value);
        if (lastReported === kill) writer.child.kill('SIGKILL');
      }
      expect(lastReported).toBeGreaterThanOrEqual(kill);

      const records = open();
      const { volumes } = records.volumes.totals('gold' as StoreName);
      // The last transaction may have been committed, but not reported.
      expect([lastReported + 1, lastReported + 2]).toContain(volumes);
      for (let n = 0; n < volumes; n++) {
        expect(records.volumes.byId(`sv1-${n}` as VolumeId)?.labels).toEqual({ n: String(n) });
        expect(records.operations.get(`op1-${n}` as OperationId)?.state).toBe('done');
      }
      expect(records.operations.listUnfinished()).toEqual([]);
      expect(records.operations.page({ limit: 10_000 }).items).toHaveLength(volumes);
    },
  );
});

describe('a database of format 0', () => {
  const sql = readFileSync(new URL('fixtures/version-0.sql', import.meta.url), 'utf8');

  beforeEach(() => withDatabase((db) => db.exec(sql)));

  test('is in the fixtures as the script beside it creates it', () => {
    expect(sql).toBe(versionZero());
  });

  test.each(['once', 'again after a restart'])('is upgraded %s and keeps every row', (when) => {
    if (when !== 'once') openRecords(path).close();
    const records = open();
    const startTime = 1_750_000_000_000;
    expect(records.settings.get('node')).toBe("the machine's name");
    expect(records.stores.list()).toEqual([
      { name: 'default', uri: 'local:///srv/stowage/default' },
      { name: 'images', uri: 'local:///srv/stowage/images?layout=image' },
    ]);
    let bytes = 0n;
    for (let n = 1; n <= volumeCount; n++) {
      const old = bytesOf(n);
      expect(records.volumes.byId(volumeId(n) as VolumeId)).toEqual({
        id: volumeId(n),
        name: `volume-${n}`,
        store: n % 4 === 0 ? 'images' : 'default',
        bytes: old === null ? undefined : BigInt(old),
        enforce: false,
        access: n % 8 === 0 ? 'block' : 'filesystem',
        labels: {},
        requestId: `request-${n}`,
        createdAt: startTime + n,
        revision: 1,
        instance: '7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11',
      });
      if (n % 4 === 0) bytes += BigInt(old ?? 0);
    }
    expect(records.volumes.totals('images' as StoreName)).toEqual({ volumes: 10, bytes });
    expect(records.volumes.totals('default' as StoreName).volumes).toBe(30);
    expect(records.volumes.byName('images' as StoreName, 'volume-8' as VolumeName)?.id).toBe(volumeId(8));

    expect(records.operations.page({ limit: 10 }).items.map(({ id }) => id)).toEqual(['op1-b', 'op1-a', 'op1-c']);
    expect(records.operations.listUnfinished()).toMatchObject([
      { id: 'op1-b', params: { n: 2 }, startedAt: startTime + 8 },
    ]);
    expect(records.operations.get('op1-a' as OperationId)?.error?.message).toBe("it's full");
    const [mountA, mountB] = records.mounts.list();
    expect(mountA).toMatchObject({ target: '/mnt/one', readOnly: false, madeTarget: false, since: startTime + 9 });
    expect(mountB).toMatchObject({
      volumeId: volumeId(4),
      source: { kind: 'directory', path: '/srv/two' },
      readOnly: true,
      user: { kind: 'container', name: 'web' },
    });
    const owner = {
      id: 'token-2',
      name: "o'hara",
      role: 'viewer',
      stores: [],
      createdAt: startTime + 1,
      expiresAt: undefined,
    };
    expect(records.tokens.byHash('b'.repeat(64))).toEqual(owner);
    expect(records.tokens.list()).toHaveLength(2);
  });

  test('has the same tables as a new one after the upgrade', () => {
    const schema = (): unknown[] =>
      withDatabase((db) => db.prepare('SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name').all());
    openRecords(path).close();
    const upgraded = schema();
    rmSync(path);
    openRecords(path).close();
    expect(upgraded).toEqual(schema());
  });

  test('is unchanged if the upgrade fails', () => {
    withDatabase((db) => db.exec('DROP TABLE mounts'));
    expect(() => openRecords(path)).toThrow('no such table: mounts');
    withDatabase((db) => {
      expect(db.prepare('PRAGMA user_version').get()).toEqual({ user_version: 0 });
      expect(db.prepare('SELECT count(*) AS n FROM volumes').get()).toEqual({ n: volumeCount });
    });
  });
});

describe('a file that cannot be used', () => {
  test('because of a newer format is rejected and left alone', () => {
    openRecords(path).close();
    withDatabase((db) => db.exec('PRAGMA user_version = 7'));
    const bytesBefore = readFileSync(path);
    const error = refusal();
    expect(error.message).toBe(`${path} was written by a newer Stowage (format 7; this program knows up to 3)`);
    expect(error.action).toBe('Start the newer Stowage again, or choose another state folder with --state DIR.');
    expect(error).toMatchObject({ code: 'unsupported', reason: 'state-newer' });
    expect(readFileSync(path).equals(bytesBefore)).toBe(true);
  });

  test('because it is not a database is rejected', () => {
    writeFileSync(path, 'these are somebody’s notes\n'.repeat(300));
    expect(refusal()).toMatchObject({
      message: `${path} is damaged, or is not a database of Stowage`,
      code: 'internal',
      reason: 'state-corrupt',
    });
    expect(readFileSync(path, 'utf8')).toContain('notes');
  });

  test('because of a damaged page is rejected at the start', () => {
    const records = openRecords(path);
    records.transaction(() => {
      for (let n = 0; n < 2000; n++) records.settings.set(`key-${n}`, 'value');
    });
    records.close();
    const bytes = readFileSync(path);
    bytes.fill(0xa5, 8192, bytes.length - 4096);
    writeFileSync(path, bytes);
    expect(refusal()).toMatchObject({ reason: 'state-corrupt' });
    // A rejected start leaves no lock behind.
    writeFileSync(path, '');
    open().settings.set('a', '1');
  });

  test('because its folder is a file is rejected', () => {
    writeFileSync(join(folder, 'state'), '');
    const inside = join(folder, 'state', 'state.db');
    expect(refusal(inside)).toMatchObject({
      message: `the state folder ${join(folder, 'state')} cannot be used: Stowage may not open ${inside}`,
      code: 'denied',
      reason: 'state-denied',
    });
  });
});

describe.skipIf(lacks('mount'))('a small disk', () => {
  let disk: string;

  beforeEach(() => {
    disk = join(folder, 'disk');
    mkdirSync(disk);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=512k', 'stowage-test', disk]);
  });
  afterEach(() => execFileSync('umount', [disk]));

  test('that is full gives a clear error, rolls back, and works again when there is room', () => {
    const records = openRecords(join(disk, 'state.db'));
    try {
      records.settings.set('before', '1');
      const filler = join(disk, 'filler');
      const thrown = thrownBy(() => writeFileSync(filler, 'x'.repeat(1024 * 1024)));
      expect(thrown).toMatchObject({ code: 'ENOSPC' });
      const error = thrownBy(() =>
        records.transaction(() => {
          for (let n = 0; n < 100; n++) records.settings.set(`key-${n}`, 'x'.repeat(4000));
        }),
      );
      expect(error).toMatchObject({
        message: `the disk that holds the state folder ${disk} is full`,
        code: 'exhausted',
        reason: 'state-full',
      });
      expect(records.settings.get('key-0')).toBeUndefined();
      rmSync(filler);
      records.settings.set('after', '1');
      expect(records.settings.get('before')).toBe('1');
      expect(records.settings.get('after')).toBe('1');
    } finally {
      records.close();
    }
  });

  test.each(['with records on it', 'that is empty'])('that is read-only, %s', (when) => {
    const inside = join(disk, 'state.db');
    if (when === 'with records on it') openRecords(inside).close();
    execFileSync('mount', ['-o', 'remount,ro', disk]);
    expect(refusal(inside)).toMatchObject({
      message: `the state folder ${disk} is read-only`,
      code: 'denied',
      reason: 'state-read-only',
    });
  });
});

function thrownBy(work: () => void): unknown {
  try {
    work();
  } catch (thrown) {
    return thrown;
  }
  throw new Error('nothing was thrown');
}
