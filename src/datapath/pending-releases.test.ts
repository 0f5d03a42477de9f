import { constants, linkSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import { createBudget, maxUnwrittenBytes } from './budget.ts';
import { type FileSystemParts, openFileSystem } from './file-system.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);
const hidden = expect.stringMatching(/^\.nfs[0-9a-f]{24}$/);
/** Waits until everything that does not need the server's answer is done. */
const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

interface Gate {
  /** Counts calls at the server. */
  calls: number;
  open(): void;
}

describe.skipIf(lacks('ganesha'))('the last close of a removed file', () => {
  const exported = exportedByGanesha();

  /** Long cache time, so that names are not requested. */
  function mount(parts: Partial<FileSystemParts> = {}) {
    const nfs: NfsClient = { ...exported.nfs };
    const clock = parts.clock ?? systemClock();
    const { softMs } = parts.options ?? {};
    const operations = openFileSystem({
      nodes: createMemoryNodes(exported.directory),
      proofs: createMemoryProofs(),
      notify: () => undefined,
      ...parts,
      nfs,
      clock,
      options: { identity: asCaller, cacheMs: 60_000, softMs },
    }).operations as Operations;
    let lastPlace = 0;
    const interrupt = new AbortController();
    const request = (signal = new AbortController().signal): Request => ({
      uid: 0,
      gid: 0,
      pid: 1,
      slot: ++lastPlace,
      resent: false,
      signal,
    });

    /** Blocks calls of this kind, or their answers, until opened. */
    function gate(procedure: 'remove' | 'rename' | 'write', blocked: 'calls' | 'answers' = 'calls'): Gate {
      const { promise, resolve } = Promise.withResolvers<void>();
      const newGate: Gate = { calls: 0, open: resolve };
      const call = exported.nfs[procedure] as (...args: unknown[]) => Promise<unknown>;
      const gated = async (...args: unknown[]): Promise<unknown> => {
        newGate.calls++;
        if (blocked === 'calls') await promise;
        const answer = await call(...args);
        await promise;
        return answer;
      };
      Object.assign(nfs, { [procedure]: gated });
      return newGate;
    }

    const lookup = async (parent: number, text: string): Promise<number> =>
      (await operations.lookup(parent, name(text), request())).node;

    async function list(node: number, signal?: AbortSignal): Promise<string[]> {
      const found: string[] = [];
      const { fh } = await operations.opendir(node, 0, request());
      for (let offset = 0n, isMore = true; isMore; ) {
        isMore = false;
        const add = (entry: { name: Uint8Array; offset: bigint }): boolean => {
          found.push(Buffer.from(entry.name).toString());
          offset = entry.offset;
          isMore = true;
          return true;
        };
        await operations.readdir(node, { fh, offset, plus: false }, { add }, request(signal));
      }
      return found.filter((one) => one !== '.' && one !== '..').toSorted();
    }

    const close = (file: number, fh: number) => operations.release(file, { fh, unlock: undefined }, request());

    /** A directory with a file that is opened and removed. */
    async function openAndRemove() {
      mkdirSync(exported.on('directory'));
      writeFileSync(exported.on('directory/file'), 'x');
      const directory = await lookup(root, 'directory');
      const file = await lookup(directory, 'file');
      const { fh } = await operations.open(file, constants.O_RDONLY, request());
      await operations.unlink(directory, name('file'), request());
      return { directory, close: () => close(file, fh) };
    }

    return { nfs, on: operations, request, interrupt, gate, look: lookup, list, close, removed: openAndRemove };
  }

  test('ends before its directory is listed', async () => {
    const { gate, list, removed } = mount();
    const { directory, close } = await removed();
    expect(await list(directory)).toEqual([hidden]);
    const removal = gate('remove');
    const closed = close();
    const listed = list(directory);
    // Another directory is not affected.
    expect(await list(root)).toEqual(['directory']);
    expect(removal.calls).toBe(1);
    removal.open();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('ends before its directory is removed', async () => {
    const { on, nfs, gate, request, removed } = mount();
    const { close } = await removed();
    const removal = gate('remove');
    let calls = 0;
    nfs.rmdir = (...args) => {
      calls++;
      return exported.nfs.rmdir(...args);
    };
    const closed = close();
    const rmdirResult = on.rmdir(root, name('directory'), request());
    await nextTurn();
    expect([removal.calls, calls]).toEqual([1, 0]);
    removal.open();
    await Promise.all([closed, rmdirResult]);
    expect(readdirSync(exported.folder)).toEqual([]);
  });

  test('ends before its directory is replaced', async () => {
    mkdirSync(exported.on('other'));
    const { on, nfs, gate, look, request, removed } = mount();
    const { close } = await removed();
    await look(root, 'other');
    const removal = gate('remove');
    let calls = 0;
    nfs.rename = (...args) => {
      calls++;
      return exported.nfs.rename(...args);
    };
    const closed = close();
    const [from, to] = ['other', 'directory'].map((text) => ({ parent: root, name: name(text) }));
    const moved = on.rename(from ?? expect.fail(), to ?? expect.fail(), 0, request());
    await nextTurn();
    expect([removal.calls, calls]).toEqual([1, 0]);
    removal.open();
    await Promise.all([closed, moved]);
    expect(readdirSync(exported.folder)).toEqual(['directory']);
  });

  test('ends first even if a successor has to wait before it may change anything', async () => {
    let drained: PromiseWithResolvers<void> | undefined;
    const journal = { keep: () => undefined, free: () => undefined };
    const { list, gate, removed } = mount({
      writeBehind: { journal, budget: createBudget(maxUnwrittenBytes), ready: () => drained?.promise },
    });
    const { directory, close } = await removed();
    const removal = gate('remove');
    removal.open();
    drained = Promise.withResolvers();
    const closed = close();
    const listed = list(directory);
    expect(await list(root)).toEqual(['directory']);
    expect(removal.calls).toBe(0);
    drained.resolve();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('ends first even if the file was removed after the close, while its data were in flight', async () => {
    const journal = { keep: () => undefined, free: () => undefined };
    const { on, gate, look, list, request, close } = mount({
      writeBehind: { journal, budget: createBudget(maxUnwrittenBytes), ready: () => undefined },
    });
    writeFileSync(exported.on('file'), '');
    const file = await look(root, 'file');
    const { fh } = await on.open(file, constants.O_WRONLY, request());
    const writeGate = gate('write');
    await on.write(file, { fh, offset: 0, openFlags: constants.O_WRONLY } as never, name('data'), request());
    const closed = close(file, fh);
    await on.unlink(root, name('file'), request());
    const listed = list(root);
    expect(readdirSync(exported.folder)).toEqual([hidden]);
    writeGate.open();
    expect(await listed).toEqual([]);
    await closed;
  });

  test('leaves a visible name if the name cannot be removed', async () => {
    const { nfs, list, removed } = mount();
    const { directory, close } = await removed();
    nfs.remove = () => Promise.reject(new NfsError('REMOVE', nfsStatus.ACCES, false));
    const closed = expect(close()).rejects.toThrow('EACCES');
    expect(await list(directory)).toEqual([hidden]);
    await closed;
    expect(await list(directory)).toEqual([hidden]);
  });

  test('does not block an interrupted request', async () => {
    const clock = createFakeClock();
    const { gate, list, interrupt, removed } = mount({ clock });
    const { directory, close } = await removed();
    const removal = gate('remove');
    const closed = close();
    const rejection = expect(list(directory, interrupt.signal)).rejects.toThrow('EINTR');
    expect(await list(root)).toEqual(['directory']);
    interrupt.abort();
    for (let i = 0; i < 8; i++) clock.advance(250);
    await rejection;
    removal.open();
    await closed;
  });

  test('soft: fails a waiting request with EIO after the timeout', async () => {
    const clock = createFakeClock();
    const { gate, list, removed } = mount({ clock, options: { identity: asCaller, softMs: 3_000 } });
    const { directory, close } = await removed();
    const removal = gate('remove');
    const closed = close();
    const rejection = expect(list(directory)).rejects.toThrow('EIO');
    expect(await list(root)).toEqual(['directory']);
    clock.advance(3_000);
    await rejection;
    removal.open();
    await closed;
  });

  test('leaves no hidden name if it happens during the removal', async () => {
    writeFileSync(exported.on('file'), 'x');
    const { on, gate, look, request, close } = mount();
    const file = await look(root, 'file');
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    const [hideGate, removal] = [gate('rename'), gate('remove')];
    removal.open();
    const unlinked = on.unlink(root, name('file'), request());
    await nextTurn();
    const closed = close(file, fh);
    // Waits until the server has answered every call.
    for (const text of ['1', '2', '3']) await look(root, text);
    expect([hideGate.calls, removal.calls]).toEqual([1, 0]);
    hideGate.open();
    await Promise.all([unlinked, closed]);
    expect(readdirSync(exported.folder)).toEqual([]);
  });

  test.each([
    { server: 'can', removals: 1 },
    { server: 'cannot', removals: 0 },
  ])(
    'leaves the file in place if it happens during a replacement that fails (the server $server do LINK)',
    async ({ server, removals }) => {
      for (const text of ['new', 'old']) writeFileSync(exported.on(text), text);
      const { on, nfs, gate, look, request, close } = mount();
      if (server === 'cannot') nfs.link = () => Promise.reject(new NfsError('LINK', nfsStatus.NOTSUPP, false));
      const file = await look(root, 'old');
      const { fh } = await on.open(file, constants.O_RDONLY, request());
      const refusal = Promise.withResolvers<never>();
      nfs.rename = (...args) => (String(args[0].name) === 'new' ? refusal.promise : exported.nfs.rename(...args));
      const removal = gate('remove');
      removal.open();
      const [from, to] = ['new', 'old'].map((text) => ({ parent: root, name: name(text) }));
      const moved = expect(on.rename(from ?? expect.fail(), to ?? expect.fail(), 0, request())).rejects.toThrow(
        'EACCES',
      );
      await expect.poll(() => readdirSync(exported.folder).some((text) => text.startsWith('.nfs'))).toBe(true);
      for (const text of ['1', '2', '3']) await look(root, text);
      const closed = close(file, fh);
      for (const text of ['4', '5', '6']) await look(root, text);
      refusal.reject(new NfsError('RENAME', nfsStatus.ACCES, false));
      await Promise.all([moved, closed]);
      expect(removal.calls).toBe(removals);
      expect(readdirSync(exported.folder).toSorted()).toEqual(['new', 'old']);
    },
  );

  test('leaves one hidden name if two links are removed at once', async () => {
    writeFileSync(exported.on('file'), 'x');
    linkSync(exported.on('file'), exported.on('other'));
    const { on, gate, look, request, close } = mount();
    const file = await look(root, 'file');
    await look(root, 'other');
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    const hideGate = gate('rename');
    const unlinked = ['file', 'other'].map((text) => on.unlink(root, name(text), request()));
    await look(root, 'nothing');
    hideGate.open();
    await Promise.all(unlinked);
    expect(hideGate.calls).toBe(1);
    expect(readdirSync(exported.folder)).toEqual([hidden]);
    await close(file, fh);
    expect(readdirSync(exported.folder)).toEqual([]);
  });

  test('leaves no hidden name if the file is opened and removed by another link meanwhile', async () => {
    writeFileSync(exported.on('file'), 'x');
    linkSync(exported.on('file'), exported.on('other'));
    const { on, gate, look, list, request, close } = mount();
    const file = await look(root, 'file');
    await look(root, 'other');
    const before = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('file'), request());
    const removal = gate('remove', 'answers');
    const closed = close(file, before.fh);
    await expect.poll(() => readdirSync(exported.folder)).toEqual(['other']);
    const opening = on.open(file, constants.O_RDONLY, request());
    const unlinked = on.unlink(root, name('other'), request());
    for (const text of ['1', '2', '3']) await look(root, text);
    removal.open();
    const [{ fh }] = await Promise.all([opening, closed, unlinked]);
    expect(await list(root)).toEqual([hidden]);
    await close(file, fh);
    expect(readdirSync(exported.folder)).toEqual([]);
  });

  test('keeps the file if it is opened by another link before that one is removed', async () => {
    writeFileSync(exported.on('file'), 'x');
    linkSync(exported.on('file'), exported.on('other'));
    let drained: PromiseWithResolvers<void> | undefined;
    const journal = { keep: () => undefined, free: () => undefined };
    const { on, look, request, close } = mount({
      writeBehind: { journal, budget: createBudget(maxUnwrittenBytes), ready: () => drained?.promise },
    });
    const file = await look(root, 'file');
    await look(root, 'other');
    const before = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('file'), request());
    drained = Promise.withResolvers();
    const closed = close(file, before.fh);
    const { fh } = await on.open(file, constants.O_RDONLY, request());
    await on.unlink(root, name('other'), request());
    drained.resolve();
    await closed;
    expect((await on.read(file, { fh, offset: 0, size: 10 } as never, request())).length).toBe(1);
    await close(file, fh);
    expect(readdirSync(exported.folder)).toEqual([]);
  });
});
