import { spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { connectTo, receiveMessage, sendMessage } from '#base/linux/descriptor-sockets.ts';
import { lacks } from '#testbed/lacks.ts';
import { createKeeperFixture, eventually, type KeeperFixture, testProgram } from '#testing/keeper/keeper-process.ts';
import { suspend } from '#testing/suspend.ts';
import { heartbeatOf } from './heartbeat.ts';
import type { KeeperClient } from './keeper-client.ts';
import { encode, type KeeperState } from './protocol.ts';

let scratch: KeeperFixture;

describe.skipIf(lacks('linux', 'root'))('keepers and data paths as processes', () => {
  beforeEach(() => {
    scratch = createKeeperFixture();
  });
  afterEach(async () => {
    await scratch[Symbol.asyncDispose]();
  });

  const isServingWithStandby = ({ doing, standby }: KeeperState): boolean => doing === 'serving' && standby !== null;
  /** One serves, another is standby. */
  const waitForStandby = (client: KeeperClient): Promise<KeeperState> =>
    eventually(() => client.status(scratch.signal), isServingWithStandby);
  const pidOf = (state: KeeperState): number => state.active?.pid ?? expect.fail('nobody serves');
  const descriptorsOf = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
  const isAlive = (pid: number): boolean => {
    try {
      return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ');
    } catch {
      return false;
    }
  };
  const linkOtherProgram = (): string => {
    const path = join(scratch.folder, 'other-program.ts');
    symlinkSync(testProgram, path);
    return path;
  };

  describe('a data path that dies', () => {
    test('is replaced by the standby, with descriptors, specs and journal', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'one', { export: 'a' });
      expect(await scratch.recordAfter('one', 1)).toMatchObject({ as: 'first', spec: { export: 'a' }, served: 1 });
      await scratch.adopt(client, 'two', { export: 'b' });
      expect(await scratch.recordAfter('two', 1)).toMatchObject({ as: 'added', spec: { export: 'b' } });
      const before = await waitForStandby(client);
      process.kill(pidOf(before), 'SIGKILL');
      const [one, two] = [await scratch.recordAfter('one', 2), await scratch.recordAfter('two', 2)];
      expect(one).toMatchObject({
        as: 'successor',
        id: 'one',
        spec: { export: 'a' },
        served: 2,
        pid: before.standby?.pid,
      });
      expect(two).toMatchObject({
        as: 'successor',
        id: 'two',
        spec: { export: 'b' },
        served: 2,
        pid: before.standby?.pid,
      });
      const after = await waitForStandby(client);
      expect(after).toMatchObject({ takeovers: 1, deaths: 1, mounts: 2, report: 'served 2' });
    });

    test('before its standby is loaded is replaced as soon as that is ready', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      scratch.behave({ loadsForMs: 700 });
      const state = await eventually(
        () => client.status(scratch.signal),
        ({ doing }) => doing === 'serving',
      );
      process.kill(pidOf(state), 'SIGKILL');
      if (state.standby !== null) process.kill(state.standby.pid, 'SIGKILL');
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ as: 'successor', served: 2 });
    });

    test('is distinguished from a live one by its heartbeat', async () => {
      const keeper = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      await waitForStandby(client);
      const folder = `/proc/${keeper.pid}/fd`;
      const journal = readdirSync(folder).find((fd) => readlinkSync(join(folder, fd)).includes('stowage-journal'));
      const fd = openSync(join(folder, journal ?? ''), 'r');
      const first = heartbeatOf(fd);
      await eventually(
        () => heartbeatOf(fd),
        (now) => now >= first + 2,
      );
      closeSync(fd);
    });

    test('by hanging is killed, and the standby takes over', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await waitForStandby(client);
      await suspend(pidOf(before));
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ pid: before.standby?.pid, as: 'successor' });
      expect(isAlive(pidOf(before))).toBe(false);
    });

    test('repeatedly is reported to the agent and restarted until it works', async () => {
      // Set before the start, because the keeper starts a data path at once.
      scratch.behave({ dies: 'serving' });
      await scratch.startKeeper();
      const reportedStates: string[] = [];
      const client = scratch.client(({ doing }) => reportedStates.push(doing));
      await scratch.adopt(client, 'm');
      await eventually(
        () => reportedStates,
        (all) => all.includes('failing'),
      );
      scratch.behave({});
      await scratch.recordAfter('m', 1);
      expect((await client.status(scratch.signal)).deaths).toBeGreaterThanOrEqual(5);
    });

    test('leaves copies of its connections, which its successor closes', async () => {
      const server = createServer().listen(0, '127.0.0.1');
      const sockets: Socket[] = [];
      server.on('connection', (socket) => sockets.push(socket.on('error', () => undefined).resume()));
      await once(server, 'listening');
      const address = server.address();
      const port = typeof address === 'object' && address !== null ? address.port : 0;
      scratch.behave({ connectsToPort: port });
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await eventually(
        () => client.status(scratch.signal),
        (state) => isServingWithStandby(state) && state.sockets === 1,
      );
      const closed = sockets.map((socket) => once(socket, 'end'));
      process.kill(pidOf(before), 'SIGKILL');
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ sockets: [`to ${port}`] });
      expect(sockets[0]?.readableEnded).toBe(false);
      // The successor starts closing them.
      scratch.behave({ releasesHeld: true });
      await eventually(
        () => client.status(scratch.signal),
        (state) => isServingWithStandby(state) && state.sockets === 2,
      );
      const standby = await client.status(scratch.signal);
      process.kill(standby.standby?.pid ?? 0, 'SIGKILL');
      await eventually(
        () => client.status(scratch.signal),
        (state) => isServingWithStandby(state) && state.standby?.pid !== standby.standby?.pid,
      );
      process.kill(pidOf(standby), 'SIGKILL');
      await Promise.all(closed);
      await eventually(
        () => client.status(scratch.signal),
        (state) => state.sockets === 0,
      );
      for (const socket of sockets) socket.destroy();
      server.close();
    });
  });

  describe('agents', () => {
    test('learn how many files are incomplete, or that some may be', async () => {
      scratch.behave({ unwritten: 3 });
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      await scratch.adopt(client, 'silent');
      expect(await client.flush('m', 10_000, scratch.signal)).toBe(3);
      expect(await client.flush('silent', 50, scratch.signal)).toBe(1);
      expect(await client.flush('unknown', 10_000, scratch.signal)).toBe(0);
    });

    test('can list adopted mounts; adopting twice is refused, dropping an absent mount succeeds', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      for (const name of ['b', 'a', 'c']) await scratch.adopt(client, name);
      await expect(scratch.adopt(client, 'a')).rejects.toMatchObject({ reason: 'exists' });
      expect(await client.list(scratch.signal)).toEqual(['a', 'b', 'c']);
      for (let i = 0; i < 2; i++) await client.drop('b', scratch.signal);
      expect(await client.list(scratch.signal)).toEqual(['a', 'c']);
      await expect(scratch.adopt(client, 'd', 'x'.repeat(33_000))).rejects.toMatchObject({ reason: 'invalid' });
      expect(await scratch.recordAfter('c', 1)).toMatchObject({ id: 'c' });
    });

    test('can list and hand over 300 mounts completely', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      const names = Array.from({ length: 300 }, (_, i) => `m${1000 + i}`);
      for (const name of names) await scratch.adopt(client, name);
      expect(await client.list(scratch.signal)).toEqual(names);
      const before = await waitForStandby(client);
      process.kill(pidOf(before), 'SIGKILL');
      for (const name of names)
        await eventually(
          () => scratch.recordsOf(name).at(-1),
          (last) => last?.as === 'successor' && last.pid === before.standby?.pid,
        );
    });

    test('leak no descriptor after 1,000 mounts came and went', async () => {
      const keeper = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'stays');
      const state = await waitForStandby(client);
      const count = (): readonly number[] => [descriptorsOf(keeper.pid), descriptorsOf(pidOf(state))];
      await scratch.adopt(client, 'first');
      await client.drop('first', scratch.signal);
      await eventually(() => existsSync(join(scratch.folder, 'removed')), Boolean);
      const before = count();
      for (let i = 0; i < 1000; i++) {
        await scratch.adopt(client, 'comes and goes', { i });
        await client.drop('comes and goes', scratch.signal);
      }
      await eventually(count, (now) => String(now) === String(before));
    }, 120_000);

    test('that disconnect leave nothing behind', async () => {
      const keeper = await scratch.startKeeper();
      const first = scratch.client();
      await eventually(
        () => first.status(scratch.signal),
        ({ standby }) => standby !== null,
      );
      const before = descriptorsOf(keeper.pid);
      for (let i = 0; i < 20; i++) {
        const client = scratch.client();
        await client.status(scratch.signal);
        client[Symbol.dispose]();
      }
      await eventually(
        () => descriptorsOf(keeper.pid),
        (now) => now === before,
      );
    });

    test.each([
      ['no JSON', Buffer.from('hunter2')],
      ['another version', Buffer.from('{"v":99,"kind":"hello","role":"agent","pid":1,"version":"hunter2"}')],
      ['huge', Buffer.alloc(200_000, 'hunter2')],
      ['something else than hello', encode({ kind: 'adopt', ask: 1, mount: 'm', spec: 'hunter2' })],
    ])('that send garbage lose only their own connection: %s', async (_, bytes) => {
      const keeper = await scratch.startKeeper();
      const client = scratch.client();
      await eventually(
        () => client.status(scratch.signal),
        ({ standby }) => standby !== null,
      );
      const before = descriptorsOf(keeper.pid);
      const fd = connectTo(scratch.socket);
      sendMessage(fd, { bytes, descriptors: [fd, fd, fd] });
      expect((await receiveMessage(fd))?.bytes.toString()).toContain('"kind":"failed"');
      expect(await receiveMessage(fd)).toBeUndefined();
      closeSync(fd);
      await eventually(
        () => descriptorsOf(keeper.pid),
        (now) => now === before,
      );
      await client.status(scratch.signal);
      expect(scratch.log()).not.toContain('hunter2');
    });

    test('put no secrets into logs and command lines, and other users cannot enter', async () => {
      const keeper = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm', { password: 'hunter2' });
      await expect(scratch.adopt(client, 'm', { password: 'hunter2' })).rejects.toThrow();
      const state = await waitForStandby(client);
      process.kill(pidOf(state), 'SIGKILL');
      await scratch.recordAfter('m', 2);
      expect(scratch.log()).not.toContain('hunter2');
      expect(statSync(join(scratch.folder, 'own')).mode & 0o777).toBe(0o700);
      const title = (pid: number | undefined): string =>
        readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')[0] ?? '';
      expect(title(keeper.pid)).toBe('stowage keeper');
      const locked = Number(/^VmLck:\s+(\d+)/m.exec(readFileSync(`/proc/${keeper.pid}/status`, 'utf8'))?.[1]) > 0;
      expect(scratch.log()).toContain(`"isCodeLocked":${locked},"isClosed":true`);
      expect(readFileSync(`/proc/${keeper.pid}/limits`, 'utf8')).toMatch(/Max core file size\s+0\s+0/);
    });

    test('can stop a keeper and its data paths', async () => {
      const keeper = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const { active, standby } = await waitForStandby(client);
      await client.end(scratch.signal);
      // A data path that reconnects now must not find this keeper.
      expect(() => connectTo(scratch.socket)).toThrow('ECONNREFUSED');
      expect(await keeper.ended).toBe(0);
      expect([active, standby].map((worker) => isAlive(worker?.pid ?? 0))).toEqual([false, false]);
      await expect(client.status(scratch.signal)).rejects.toMatchObject({ reason: 'gone' });
    });
  });

  describe('an upgrade', () => {
    test('switches to another program without a death', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      await waitForStandby(client);
      await client.upgrade(linkOtherProgram(), scratch.signal);
      expect(scratch.recordsOf('m')).toMatchObject([
        { version: 'test' },
        { version: 'other', as: 'successor', served: 2 },
      ]);
      expect(await waitForStandby(client)).toMatchObject({
        deaths: 0,
        active: { version: 'other' },
        standby: { version: 'other' },
      });
    });

    test('kills a data path that does not stop', async () => {
      scratch.behave({ stops: false });
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await waitForStandby(client);
      await client.upgrade(linkOtherProgram(), scratch.signal);
      expect(isAlive(pidOf(before))).toBe(false);
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ version: 'other', as: 'successor' });
    });

    test('to a program that exits at once changes nothing', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await waitForStandby(client);
      const bad = join(scratch.folder, 'bad.mjs');
      writeFileSync(bad, 'process.exit(1);');
      await expect(client.upgrade(bad, scratch.signal)).rejects.toMatchObject({ reason: 'not-started' });
      expect((await client.status(scratch.signal)).active).toEqual(before.active);
      expect(scratch.recordsOf('m')).toHaveLength(1);
    });
  });

  describe('a new keeper', () => {
    test('takes everything over while the data path keeps serving, and then replaces it when it dies', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm', { export: 'a' });
      const before = await waitForStandby(client);
      const second = await scratch.startKeeper();
      expect(await first.ended).toBe(0);
      const next = scratch.client();
      const after = await waitForStandby(next);
      expect(after).toMatchObject({ active: before.active, mounts: 1, deaths: 0, report: 'served 1' });
      expect(scratch.recordsOf('m')).toHaveLength(1);
      await scratch.adopt(next, 'later');
      expect(await scratch.recordAfter('later', 1)).toMatchObject({ as: 'added', pid: pidOf(before) });
      process.kill(pidOf(before), 'SIGKILL');
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ as: 'successor', spec: { export: 'a' }, served: 2 });
      expect(isAlive(second.pid)).toBe(true);
      expect(readdirSync(join(scratch.folder, 'own')).sort()).toEqual(['keeper.sock', 'keeper.sock.serving']);
    });

    test('many times over leaks nothing in the data path', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const pid = pidOf(await waitForStandby(client));
      const before = descriptorsOf(pid);
      for (let i = 0; i < 4; i++) await scratch.startKeeper();
      const next = scratch.client();
      expect(pidOf(await waitForStandby(next))).toBe(pid);
      await eventually(
        () => descriptorsOf(pid),
        (now) => now === before,
      );
      expect(scratch.recordsOf('m')).toHaveLength(1);
    });

    test('takes over from one whose data paths all die', async () => {
      await scratch.startKeeper();
      const client = scratch.client();
      scratch.behave({ dies: 'at once' });
      const { standby } = await client.status(scratch.signal);
      if (standby !== null) process.kill(standby.pid, 'SIGKILL');
      await scratch.adopt(client, 'm', { export: 'a' });
      const state = await client.status(scratch.signal);
      if (state.active !== null) process.kill(state.active.pid, 'SIGKILL');
      await eventually(
        () => client.status(scratch.signal),
        ({ active, deaths }) => active === null && deaths > 0,
      );
      scratch.behave({});
      await scratch.startKeeper();
      expect(await waitForStandby(scratch.client())).toMatchObject({ mounts: 1 });
      expect(scratch.recordsOf('m').at(-1)).toMatchObject({ spec: { export: 'a' } });
    });

    test('gets everything from the data path when the previous keeper died', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm', { export: 'a' });
      const before = await waitForStandby(client);
      process.kill(first.pid, 'SIGKILL');
      await first.ended;
      // The standby exits, since it serves nothing.
      await eventually(
        () => isAlive(before.standby?.pid ?? 0),
        (alive) => !alive,
      );
      expect(isAlive(pidOf(before))).toBe(true);
      await scratch.startKeeper();
      const next = scratch.client();
      const after = await waitForStandby(next);
      expect(after).toMatchObject({ active: before.active, mounts: 1, report: 'served 1' });
      expect(scratch.recordsOf('m')).toHaveLength(1);
      process.kill(pidOf(before), 'SIGKILL');
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ as: 'successor', spec: { export: 'a' }, served: 2 });
    });

    test('starts no second data path while a live one has not connected yet', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const pid = pidOf(await waitForStandby(client));
      await suspend(pid);
      process.kill(first.pid, 'SIGKILL');
      await first.ended;
      await scratch.startKeeper();
      const next = scratch.client();
      expect(await next.status(scratch.signal)).toMatchObject({ doing: 'settling' });
      const adopted = scratch.adopt(next, 'second');
      process.kill(pid, 'SIGCONT');
      await adopted;
      expect(await scratch.recordAfter('second', 1)).toMatchObject({ as: 'added', pid });
    });

    test('takes over from one with too many pending connections', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await waitForStandby(client);
      await suspend(first.pid);
      const pendingConnections: number[] = [];
      const fillBacklog = () => {
        while (pendingConnections.length < 100) pendingConnections.push(connectTo(scratch.socket));
      };
      expect(fillBacklog).toThrow(expect.objectContaining({ code: 'EAGAIN' }));
      const started = scratch.startKeeper();
      const waited = eventually(
        () => readFileSync(join(scratch.folder, 'log'), 'utf8'),
        (log) => log.includes('is busy'),
      );
      try {
        await Promise.race([waited, started]);
      } finally {
        for (const fd of pendingConnections) closeSync(fd);
        process.kill(first.pid, 'SIGCONT');
      }
      await started;
      expect(await first.ended).toBe(0);
      expect(pidOf(await waitForStandby(scratch.client()))).toBe(pidOf(before));
    });

    test('starts fresh when keeper and data path died', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const { active } = await waitForStandby(client);
      process.kill(first.pid, 'SIGKILL');
      process.kill(active?.pid ?? 0, 'SIGKILL');
      await first.ended;
      await scratch.startKeeper();
      expect(await scratch.client().status(scratch.signal)).toMatchObject({ doing: 'idle', mounts: 0 });
    });

    test('waits for the next data path if the serving one hangs', async () => {
      const first = await scratch.startKeeper();
      const client = scratch.client();
      await scratch.adopt(client, 'm');
      const before = await waitForStandby(client);
      // It does not receive the order to move.
      await suspend(pidOf(before));
      await scratch.startKeeper();
      expect(await first.ended).toBe(0);
      expect(await scratch.recordAfter('m', 2)).toMatchObject({ as: 'successor', pid: before.standby?.pid });
      expect((await waitForStandby(scratch.client())).active?.pid).toBe(before.standby?.pid);
      expect(scratch.recordsOf('m')).toHaveLength(2);
    });
  });

  test("connections of other users are refused whatever the folder's permissions", async () => {
    await scratch.startKeeper();
    for (const path of [scratch.folder, join(scratch.folder, 'own'), scratch.socket])
      await new Promise((resolve) => spawn('chmod', ['777', path]).once('exit', resolve));
    const script = `
    const { connectTo, receiveMessage, sendMessage } = await import(process.argv[1]);
    const fd = connectTo(process.argv[2]);
    try { sendMessage(fd, { bytes: Buffer.from('{}'), descriptors: [] }); } catch {}
    process.stdout.write(String(await receiveMessage(fd)));`;
    const module = new URL(import.meta.resolve('../base/linux/descriptor-sockets.ts')).pathname;
    const log = openSync(join(scratch.folder, 'out'), 'w');
    const child = spawn(process.execPath, ['--input-type=module', '-e', script, module, scratch.socket], {
      uid: 65_534,
      gid: 65_534,
      stdio: ['ignore', log, 'inherit'],
      timeout: 20_000,
    });
    const [status] = await once(child, 'exit');
    closeSync(log);
    expect(status).toBe(0);
    expect(readFileSync(join(scratch.folder, 'out'), 'utf8')).toBe('undefined');
    await eventually(
      () => scratch.log(),
      (log) => log.includes('refused a connection'),
    );
  });
});
