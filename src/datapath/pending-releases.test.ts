import { constants, linkSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { needs } from '#testbed/needs.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import { createBudget, mostBehind } from './budget.ts';
import { type FileSystemParts, openFileSystem } from './file-system.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);
const hidden = expect.stringMatching(/^\.nfs[0-9a-f]{24}$/);
/** All that can go on without an answer of the server has gone on. */
const asFarAsItGets = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface Gate {
  /** How often a call came there. */
  calls: number;
  open(): void;
}

describe.skipIf(needs('ganesha'))('a file that was removed while open, and its last close', () => {
  const it = exportedByGanesha();

  /** Names are relied on for long: what a name means is not asked for then. */
  function mount(parts: Partial<FileSystemParts> = {}) {
    const nfs: NfsClient = { ...it.nfs };
    const clock = parts.clock ?? systemClock();
    const { softMs } = parts.options ?? {};
    const on = openFileSystem({
      ...{ nodes: createMemoryNodes(it.directory), proofs: createMemoryProofs(), notify: () => undefined },
      ...{ ...parts, nfs, clock, options: { identity: asCaller, cacheMs: 60_000, softMs } },
    }).operations as Operations;
    let places = 0;
    const interrupt = new AbortController();
    const request = (signal = new AbortController().signal): Request => ({
      ...{ uid: 0, gid: 0, pid: 1, place: ++places, resent: false, signal },
    });

    /** Calls of this kind wait until it is opened; or what they are answered does. */
    function gate(procedure: 'remove' | 'rename' | 'write', what: 'calls' | 'answers' = 'calls'): Gate {
      const { promise, resolve } = Promise.withResolvers<void>();
      const made: Gate = { calls: 0, open: resolve };
      const call = it.nfs[procedure] as (...args: unknown[]) => Promise<unknown>;
      const gated = async (...args: unknown[]): Promise<unknown> => {
        made.calls++;
        if (what === 'calls') await promise;
        const answer = await call(...args);
        await promise;
        return answer;
      };
      Object.assign(nfs, { [procedure]: gated });
      return made;
    }

    const look = async (parent: number, text: string): Promise<number> =>
      (await on.lookup(parent, name(text), request())).node;

    async function list(node: number, signal?: AbortSignal): Promise<string[]> {
      const found: string[] = [];
      const { fh } = await on.opendir(node, 0, request());
      for (let offset = 0n, isMore = true; isMore; ) {
        isMore = false;
        const add = (entry: { name: Uint8Array; offset: bigint }): boolean => {
          found.push(Buffer.from(entry.name).toString());
          offset = entry.offset;
          isMore = true;
          return true;
        };
        await on.readdir(node, { fh, offset, plus: false }, { add }, request(signal));
      }
      return found.filter((one) => one !== '.' && one !== '..').toSorted();
    }

    const close = (file: number, fh: number) => on.release(file, { fh, unlock: undefined }, request());

    /** A directory with a file in it, which is opened, and removed. */
    async function removed() {
      mkdirSync(it.on('directory'));
      writeFileSync(it.on('directory/file'), 'x');
      const directory = await look(root, 'directory');
      const file = await look(directory, 'file');
      const { fh } = await on.open(file, constants.O_RDONLY, request());
      await on.unlink(directory, name('file'), request());
      return { directory, close: () => close(file, fh) };
    }

    return { ...{ nfs, on, request, interrupt, gate, look, list, close, removed } };
  }

  test('who lists the directory after that does not find it', async () => {
    const { gate, list, removed } = mount();
    const { directory, close } = await removed();
    expect(await list(directory)).toEqual([hidden]);
    const removal = gate('remove');
    const closed = close();
    const listed = list(directory);
    // Another directory has nothing to do with it.
    expect(await list(root)).toEqual(['directory']);
    expect(removal.calls).toBe(1);
    removal.open();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('who removes the directory after that is not told that it is not empty', async () => {
    const { on, nfs, gate, request, removed } = mount();
    const { close } = await removed();
    const removal = gate('remove');
    let asked = 0;
    nfs.rmdir = (...args) => {
      asked++;
      return it.nfs.rmdir(...args);
    };
    const closed = close();
    const gone = on.rmdir(root, name('directory'), request());
    await asFarAsItGets();
    expect([removal.calls, asked]).toEqual([1, 0]);
    removal.open();
    await Promise.all([closed, gone]);
    expect(readdirSync(it.folder)).toEqual([]);
  });

  test('nor who replaces it by another', async () => {
    mkdirSync(it.on('other'));
    const { on, nfs, gate, look, request, removed } = mount();
    const { close } = await removed();
    await look(root, 'other');
    const removal = gate('remove');
    let asked = 0;
    nfs.rename = (...args) => {
      asked++;
      return it.nfs.rename(...args);
    };
    const closed = close();
    const [from, to] = ['other', 'directory'].map((text) => ({ parent: root, name: name(text) }));
    const moved = on.rename(from ?? expect.fail(), to ?? expect.fail(), 0, request());
    await asFarAsItGets();
    expect([removal.calls, asked]).toEqual([1, 0]);
    removal.open();
    await Promise.all([closed, moved]);
    expect(readdirSync(it.folder)).toEqual(['directory']);
  });

  test('as long as the successor may not change anything, too', async () => {
    let first: PromiseWithResolvers<void> | undefined;
    const kept = { keep: () => undefined, free: () => undefined };
    const { list, gate, removed } = mount({
      behind: { kept, budget: createBudget(mostBehind), ready: () => first?.promise },
    });
    const { directory, close } = await removed();
    const removal = gate('remove');
    removal.open();
    first = Promise.withResolvers();
    const closed = close();
    const listed = list(directory);
    expect(await list(root)).toEqual(['directory']);
    expect(removal.calls).toBe(0);
    first.resolve();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('also if it was removed only after it was closed, when what was written was still under way', async () => {
    const kept = { keep: () => undefined, free: () => undefined };
    const { on, gate, look, list, request, close } = mount({
      behind: { kept, budget: createBudget(mostBehind), ready: () => undefined },
    });
    writeFileSync(it.on('file'), '');
    const file = await look(root, 'file');
    const { fh } = await on.open(file, constants.O_WRONLY, request());
    const writing = gate('write');
    await on.write(file, { fh, offset: 0, openFlags: constants.O_WRONLY } as never, name('data'), request());
    const closed = close(file, fh);
    await on.unlink(root, name('file'), request());
    const listed = list(root);
    expect(readdirSync(it.folder)).toEqual([hidden]);
    writing.open();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('one that cannot be removed is seen', async () => {
    const { nfs, list, removed } = mount();
    const { directory, close } = await removed();
    nfs.remove = () => Promise.reject(new NfsError('REMOVE', nfsStatus.ACCES, false));
    const closed = expect(close()).rejects.toThrow('EACCES');
    expect(await list(directory)).toEqual([hidden]);
    await closed;
    expect(await list(directory)).toEqual([hidden]);
  });

  test('who waits for it can be interrupted', async () => {
    const clock = createFakeClock();
    const { gate, list, interrupt, removed } = mount({ clock });
    const { directory, close } = await removed();
    const removal = gate('remove');
    const closed = close();
    const ended = expect(list(directory, interrupt.signal)).rejects.toThrow('EINTR');
    expect(await list(root)).toEqual(['directory']);
    interrupt.abort();
    for (let i = 0; i < 8; i++) clock.advance(250);
    await ended;
    removal.open();
    await closed;
  });

  test('soft: who waits for it is told EIO in time', async () => {
    const clock = createFakeClock();
    const { gate, list, removed } = mount({ clock, options: { identity: asCaller, softMs: 3_000 } });
    const { directory, close } = await removed();
    const removal = gate('remove');
    const closed = close();
    const refused = expect(list(directory)).rejects.toThrow('EIO');
    expect(await list(root)).toEqual(['directory']);
    clock.advance(3_000);
    await refused;
    removal.open();
    await closed;
  });

  test('closed while it is being removed: the name that it is given does not stay', async () => {
    writeFileSync(it.on('file'), 'x');
    const { on, gate, look, request, close } = mount();
    const file = await look(root, 'file');
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    const [hiding, removal] = [gate('rename'), gate('remove')];
    removal.open();
    const unlinked = on.unlink(root, name('file'), request());
    await asFarAsItGets();
    const closed = close(file, fh);
    // The server has answered whatever it was asked.
    for (const text of ['1', '2', '3']) await look(root, text);
    expect([hiding.calls, removal.calls]).toEqual([1, 0]);
    hiding.open();
    await Promise.all([unlinked, closed]);
    expect(readdirSync(it.folder)).toEqual([]);
  });

  test.each([
    { server: 'can', removals: 1 },
    { server: 'cannot', removals: 0 },
  ])(
    'closed while it is being replaced, which then fails: it is there as before (the server $server do LINK)',
    async ({ server, removals }) => {
      for (const text of ['new', 'old']) writeFileSync(it.on(text), text);
      const { on, nfs, gate, look, request, close } = mount();
      if (server === 'cannot') nfs.link = () => Promise.reject(new NfsError('LINK', nfsStatus.NOTSUPP, false));
      const file = await look(root, 'old');
      const { fh } = await on.open(file, constants.O_RDONLY, request());
      const refusal = Promise.withResolvers<never>();
      nfs.rename = (...args) => (String(args[0].name) === 'new' ? refusal.promise : it.nfs.rename(...args));
      const removal = gate('remove');
      removal.open();
      const [from, to] = ['new', 'old'].map((text) => ({ parent: root, name: name(text) }));
      const moved = expect(on.rename(from ?? expect.fail(), to ?? expect.fail(), 0, request())).rejects.toThrow(
        'EACCES',
      );
      await expect.poll(() => readdirSync(it.folder).some((text) => text.startsWith('.nfs'))).toBe(true);
      for (const text of ['1', '2', '3']) await look(root, text);
      const closed = close(file, fh);
      for (const text of ['4', '5', '6']) await look(root, text);
      refusal.reject(new NfsError('RENAME', nfsStatus.ACCES, false));
      await Promise.all([moved, closed]);
      expect(removal.calls).toBe(removals);
      expect(readdirSync(it.folder).toSorted()).toEqual(['new', 'old']);
    },
  );

  test('two of its names, removed at once: it is given one other', async () => {
    writeFileSync(it.on('file'), 'x');
    linkSync(it.on('file'), it.on('other'));
    const { on, gate, look, request, close } = mount();
    const file = await look(root, 'file');
    await look(root, 'other');
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    const hiding = gate('rename');
    const unlinked = ['file', 'other'].map((text) => on.unlink(root, name(text), request()));
    await look(root, 'nothing');
    hiding.open();
    await Promise.all(unlinked);
    expect(hiding.calls).toBe(1);
    expect(readdirSync(it.folder)).toEqual([hidden]);
    await close(file, fh);
    expect(readdirSync(it.folder)).toEqual([]);
  });

  test('opened and removed by another of its names, when the first is gone and nobody knows yet: that does not stay', async () => {
    writeFileSync(it.on('file'), 'x');
    linkSync(it.on('file'), it.on('other'));
    const { on, gate, look, list, request, close } = mount();
    const file = await look(root, 'file');
    await look(root, 'other');
    const before = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('file'), request());
    const removal = gate('remove', 'answers');
    const closed = close(file, before.fh);
    await expect.poll(() => readdirSync(it.folder)).toEqual(['other']);
    const opening = on.open(file, constants.O_RDONLY, request());
    const unlinked = on.unlink(root, name('other'), request());
    for (const text of ['1', '2', '3']) await look(root, text);
    removal.open();
    const [{ fh }] = await Promise.all([opening, closed, unlinked]);
    expect(await list(root)).toEqual([hidden]);
    await close(file, fh);
    expect(readdirSync(it.folder)).toEqual([]);
  });

  test('opened by another of its names before that one is gone: it stays until it is closed', async () => {
    writeFileSync(it.on('file'), 'x');
    linkSync(it.on('file'), it.on('other'));
    let first: PromiseWithResolvers<void> | undefined;
    const kept = { keep: () => undefined, free: () => undefined };
    const { on, look, request, close } = mount({
      behind: { kept, budget: createBudget(mostBehind), ready: () => first?.promise },
    });
    const file = await look(root, 'file');
    await look(root, 'other');
    const before = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('file'), request());
    first = Promise.withResolvers();
    const closed = close(file, before.fh);
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('other'), request());
    first.resolve();
    await closed;
    expect((await on.read(file, { fh, offset: 0, size: 10 } as never, request())).length).toBe(1);
    await close(file, fh);
    expect(readdirSync(it.folder)).toEqual([]);
  });
});
