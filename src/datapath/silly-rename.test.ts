import {
  chmodSync,
  chownSync,
  constants,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  writeFileSync,
} from 'node:fs';
import { describe, expect, test } from 'vitest';
import { type Clock, systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import { outHeaderSize } from '#wire/fuse/abi.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import type { CallOptions } from '#wire/rpc/client.ts';
import { RpcError } from '#wire/rpc/errors.ts';
import { encodeCredential } from '#wire/rpc/message.ts';
import { openFileSystem } from './file-system.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);
const entryAt = (text: string) => ({ parent: root, name: name(text) });
const hidden = expect.stringMatching(/^\.nfs[0-9a-f]{24}$/);

interface Gate {
  /** Counts calls at the server. */
  calls: number;
  open(): void;
  /** The server refuses calls from now on. */
  refuse(status: number): void;
}

type Call = (...args: unknown[]) => Promise<unknown>;

describe.skipIf(lacks('ganesha'))('names of files that are open or being opened', () => {
  const exported = exportedByGanesha();

  function mount({ clock = systemClock(), softMs }: { clock?: Clock; softMs?: number } = {}) {
    const nfs: NfsClient = { ...exported.nfs };
    const operations = openFileSystem({
      nodes: createMemoryNodes(exported.directory),
      proofs: createMemoryProofs(),
      notify: () => undefined,
      nfs,
      clock,
      options: { identity: asCaller, cacheMs: 60_000, softMs },
    }).operations as Operations;
    let lastPlace = 0;
    const request = ({ signal = new AbortController().signal, uid = 0 } = {}): Request => ({
      uid,
      gid: uid,
      pid: ++lastPlace,
      slot: lastPlace,
      resent: false,
      signal,
    });

    /** Like a real client, stops waiting on abort or timeout. The server may still execute the call. */
    function cancellable<R>(
      answer: Promise<R>,
      { signal, deadlineMs = Number.POSITIVE_INFINITY }: CallOptions,
    ): Promise<R> {
      const { promise, reject } = Promise.withResolvers<never>();
      const giveUp = (failure: 'canceled' | 'deadline') => () =>
        reject(new RpcError('given up', { failure, maybeDone: true }));
      signal?.addEventListener('abort', giveUp('canceled'));
      if (deadlineMs !== Number.POSITIVE_INFINITY) clock.after(deadlineMs, giveUp('deadline'));
      return Promise.race([answer, promise]);
    }

    /** Blocks calls of this kind, or their answers, until opened. */
    function gate(procedure: 'remove' | 'rename' | 'link' | 'getattr', blocked: 'calls' | 'answers' = 'calls'): Gate {
      const { promise, resolve } = Promise.withResolvers<number | undefined>();
      const newGate: Gate = { calls: 0, open: () => resolve(undefined), refuse: resolve };
      const call = exported.nfs[procedure] as Call;
      const gated = async (...args: unknown[]): Promise<unknown> => {
        const earlyResult = blocked === 'answers' ? await call(...args) : undefined;
        const status = await promise;
        if (status !== undefined) throw new NfsError(procedure.toUpperCase(), status, false);
        return earlyResult ?? (await call(...args));
      };
      const countedCall: Call = (...args) => {
        newGate.calls++;
        return cancellable(gated(...args), args.at(-1) as CallOptions);
      };
      Object.assign(nfs, { [procedure]: countedCall });
      return newGate;
    }

    const lookup = async (parent: number, text: string, uid = 0): Promise<number> =>
      (await operations.lookup(parent, name(text), request({ uid }))).node;

    return {
      nfs,
      on: operations,
      request,
      gate,
      look: lookup,
      open: async (file: number) => await operations.open(file, constants.O_RDONLY, request()),
      close: async (file: number, fh: number) => await operations.release(file, { fh, unlock: undefined }, request()),
      read: async (file: number, fh: number): Promise<string> => {
        const { buffer, length } = await operations.read(file, { fh, offset: 0, size: 10 } as never, request());
        return buffer.toString('latin1', outHeaderSize, outHeaderSize + length);
      },
      /** Waits until the server has answered every earlier call. */
      waitForServer: async () => {
        for (let i = 0; i < 4; i++) await exported.nfs.fsstat(exported.directory);
      },
      list: (folder = '') => readdirSync(exported.on(folder)).toSorted(),
    };
  }

  type Mount = ReturnType<typeof mount>;

  /** Two ways to remove the name `file`. */
  const removals: readonly {
    way: string;
    remaining: string[];
    remove: (m: Mount, signal?: AbortSignal) => Promise<void>;
  }[] = [
    {
      way: 'removed',
      remaining: ['new'],
      remove: async ({ on, request }, signal) => await on.unlink(root, name('file'), request({ signal })),
    },
    {
      way: 'replaced',
      remaining: ['file'],
      remove: async ({ on, request }, signal) =>
        await on.rename(entryAt('new'), entryAt('file'), 0, request({ signal })),
    },
  ];

  async function scratch(mounted: Mount): Promise<number> {
    for (const text of ['file', 'new']) writeFileSync(exported.on(text), text);
    await mounted.look(root, 'new');
    return await mounted.look(root, 'file');
  }

  describe.each(removals)('$way', ({ remove: take, remaining: left }) => {
    test('while it is being opened: the file is readable', async () => {
      const mounted = mount();
      const { gate, open, close, read, list } = mounted;
      const file = await scratch(mounted);
      const getattrGate = gate('getattr', 'answers');
      const opening = open(file);
      await expect.poll(() => getattrGate.calls).toBe(1);
      await take(mounted);
      expect(list()).toEqual([hidden, ...left]);
      getattrGate.open();
      const { fh } = await opening;
      expect(await read(file, fh)).toBe('file');
      await close(file, fh);
      expect(list()).toEqual(left);
    });

    test('while an open that fails is in progress: no hidden name is left', async () => {
      const mounted = mount();
      const { gate, open, list } = mounted;
      const file = await scratch(mounted);
      const getattrGate = gate('getattr');
      const openings = [open(file), open(file)].map((one) => expect(one).rejects.toThrow('EACCES'));
      await expect.poll(() => getattrGate.calls).toBe(2);
      await take(mounted);
      expect(list()).toEqual([hidden, ...left]);
      getattrGate.refuse(nfsStatus.ACCES);
      await Promise.all(openings);
      expect(list()).toEqual(left);
    });

    test('and opened before the server has done it: no open returns a file that is about to be removed', async () => {
      const mounted = mount();
      const { gate, open, waitForServer: settled } = mounted;
      const file = await scratch(mounted);
      const [removal, renameGate] = [gate('remove'), gate('rename')];
      const removed = take(mounted);
      await expect.poll(() => removal.calls + renameGate.calls).toBe(1);
      const opening = expect(open(file)).rejects.toThrow('ESTALE');
      await settled();
      removal.open();
      renameGate.open();
      await Promise.all([removed, opening]);
    });

    test.each([
      { who: 'an interrupted request', softMs: undefined, told: 'EINTR' },
      { who: 'soft: a request past its timeout', softMs: 3_000, told: 'EIO' },
    ])('$who leaves no hidden name if the server executes it after the close', async (how) => {
      const clock = createFakeClock();
      const mounted = mount({ clock, ...(how.softMs === undefined ? {} : { softMs: how.softMs }) });
      const { gate, open, close, list, waitForServer: settled } = mounted;
      const file = await scratch(mounted);
      const { fh } = await open(file);
      const hideGate = gate('rename');
      const interrupt = new AbortController();
      const ended = expect(take(mounted, interrupt.signal)).rejects.toThrow(how.told);
      await expect.poll(() => hideGate.calls).toBe(1);
      if (how.softMs === undefined) interrupt.abort();
      for (let i = 0; i < 12; i++) clock.advance(250);
      await ended;
      const closed = close(file, fh);
      await settled();
      hideGate.open();
      await closed;
      expect(list()).toEqual(left);
    });

    test('soft: an interrupted close leaves no hidden name either', async () => {
      const clock = createFakeClock();
      const mounted = mount({ clock, softMs: 3_000 });
      const { gate, open, close, list } = mounted;
      const file = await scratch(mounted);
      const { fh } = await open(file);
      const hideGate = gate('rename');
      const removed = expect(take(mounted)).rejects.toThrow('EIO');
      await expect.poll(() => hideGate.calls).toBe(1);
      const closed = expect(close(file, fh)).rejects.toThrow('EIO');
      for (let i = 0; i < 12; i++) clock.advance(250);
      await Promise.all([removed, closed]);
      mounted.on.forget(file, 1);
      hideGate.open();
      await expect.poll(() => list()).toEqual(left);
    });
  });

  test('an interrupted replacement leaves either file under the name', async () => {
    const clock = createFakeClock();
    const mounted = mount({ clock });
    const file = await scratch(mounted);
    await mounted.open(file);
    const renameGate = mounted.gate('rename');
    const interrupt = new AbortController();
    const ended = expect(
      mounted.on.rename(entryAt('new'), entryAt('file'), 0, mounted.request({ signal: interrupt.signal })),
    ).rejects.toThrow('EINTR');
    await expect.poll(() => renameGate.calls).toBe(1);
    interrupt.abort();
    for (let i = 0; i < 12; i++) clock.advance(250);
    await ended;
    // No other client ever sees the name absent.
    expect(mounted.list()).toEqual([hidden, 'file', 'new']);
    renameGate.open();
    await expect.poll(() => mounted.list()).toEqual([hidden, 'file']);
    expect(readFileSync(exported.on('file'), 'utf8')).toBe('new');
  });

  test.each([
    { way: 'removed', first: 'rename', left: ['new'] },
    { way: 'replaced', first: 'link', left: ['file'] },
  ] as const)('a file $way by an interrupted process does not use the reused memory of the request', async (how) => {
    const clock = createFakeClock();
    const mounted = mount({ clock });
    const { on, gate, request, look, list } = mounted;
    const file = await scratch(mounted);
    await mounted.open(file);
    const hideGate = gate(how.first);
    const interrupt = new AbortController();
    const { signal } = interrupt;
    const [from, to] = [entryAt('new'), entryAt('file')];
    const taken =
      how.way === 'removed'
        ? on.unlink(root, to.name, request({ signal }))
        : on.rename(from, to, 0, request({ signal }));
    const ended = expect(taken).rejects.toThrow('EINTR');
    await expect.poll(() => hideGate.calls).toBe(1);
    interrupt.abort();
    for (let i = 0; i < 12; i++) clock.advance(250);
    await ended;
    for (const { name } of [from, to]) name.fill('x');
    hideGate.open();
    await expect.poll(() => list()).toEqual([hidden, ...how.left]);
    if (how.way === 'replaced') expect(readFileSync(exported.on('file'), 'utf8')).toBe('new');
    // The cache has the right object for the name, too.
    await expect.poll(() => look(root, how.way === 'removed' ? 'file' : 'new')).toBe(0);
  });

  test.each([
    { directoryIs: 'known', isForgotten: false },
    { directoryIs: 'forgotten', isForgotten: true },
  ])(
    'a second link is removed by a user who may not look into the directory of the hidden name: $directoryIs',
    async ({ isForgotten }) => {
      for (const [text, mode] of [
        ['closed', 0o700],
        ['open', 0o777],
      ] as const) {
        mkdirSync(exported.on(text));
        chmodSync(exported.on(text), mode);
      }
      writeFileSync(exported.on('closed/file'), 'x');
      for (const text of ['other', 'third']) linkSync(exported.on('closed/file'), exported.on(`open/${text}`));
      writeFileSync(exported.on('open/new'), 'new');
      chmodSync(exported.on('open/new'), 0o666);
      const { on, look, open, request, close, list } = mount();
      const [closed, opened] = [await look(root, 'closed'), await look(root, 'open')];
      const file = await look(closed, 'file');
      for (const text of ['other', 'third', 'new']) await look(opened, text);
      const { fh } = await open(file);
      await on.unlink(closed, name('file'), request());
      if (isForgotten) on.forget(closed, 1);
      await on.unlink(opened, name('other'), request({ uid: 3000 }));
      await on.rename(
        { parent: opened, name: name('new') },
        { parent: opened, name: name('third') },
        ...([0, request({ uid: 3000 })] as const),
      );
      expect([list('closed'), list('open')]).toEqual([[hidden], ['third']]);
      await close(file, fh);
      expect([list('closed'), list('open')]).toEqual([[], ['third']]);
    },
  );

  describe.each([
    { server: 'with a server that supports LINK', hasLink: true },
    { server: 'with a server that does not support LINK', hasLink: false },
  ])('$server', ({ hasLink }) => {
    async function openRemovable() {
      const mounted = mount();
      if (!hasLink) mounted.nfs.link = () => Promise.reject(new NfsError('LINK', nfsStatus.NOTSUPP, false));
      const file = await scratch(mounted);
      const { fh } = await mounted.open(file);
      const replace = async () => await mounted.on.rename(entryAt('new'), entryAt('file'), 0, mounted.request());
      const links = async () => (await mounted.on.getattr(file, undefined, mounted.request())).attr.nlink;
      return { ...mounted, file, fh, replace, links };
    }

    test('a replaced file is readable, has no links, and is removed with the last close', async () => {
      const { file, fh, replace, links, list, read, close } = await openRemovable();
      await replace();
      expect(list()).toEqual([hidden, 'file']);
      expect([await read(file, fh), await links()]).toEqual(['file', 0]);
      await close(file, fh);
      expect(list()).toEqual(['file']);
      expect(readFileSync(exported.on('file'), 'utf8')).toBe('new');
    });

    test('a replacement that the server refuses changes nothing', async () => {
      const { nfs, file, fh, replace, links, list, close } = await openRemovable();
      nfs.rename = (from, to, options) =>
        from.name.toString() === 'new'
          ? Promise.reject(new NfsError('RENAME', nfsStatus.ACCES, false))
          : exported.nfs.rename(from, to, options);
      await expect(replace()).rejects.toThrow('EACCES');
      expect([list(), await links()]).toEqual([['file', 'new'], 1]);
      await close(file, fh);
      expect(readFileSync(exported.on('file'), 'utf8')).toBe('file');
    });

    test('a replacement that the server refuses and cannot revert removes no data', async () => {
      const { nfs, file, fh, replace, list, close } = await openRemovable();
      const refused = (what: string) => () => Promise.reject(new NfsError(what, nfsStatus.ACCES, false));
      nfs.rename = (from, to, options) =>
        from.name.toString() === 'file' ? exported.nfs.rename(from, to, options) : refused('RENAME')();
      nfs.remove = refused('REMOVE');
      await expect(replace()).rejects.toThrow('EACCES');
      nfs.remove = exported.nfs.remove;
      await close(file, fh);
      const [name = ''] = list().filter((text) => text !== 'new');
      expect(readFileSync(exported.on(name), 'utf8')).toBe('file');
      expect(list()).toEqual([hasLink ? 'file' : hidden, 'new']);
    });
  });

  test('a removed file reopened through its descriptor while it is closed is readable', async () => {
    const { on, gate, look, open, close, read, request, list } = mount();
    writeFileSync(exported.on('file'), 'file');
    const file = await look(root, 'file');
    const before = await open(file);
    await on.unlink(root, name('file'), request());
    const getattrGate = gate('getattr', 'answers');
    const opening = open(file);
    await expect.poll(() => getattrGate.calls).toBe(1);
    await close(file, before.fh);
    expect(list()).toEqual([hidden]);
    getattrGate.open();
    const { fh } = await opening;
    expect(await read(file, fh)).toBe('file');
    await close(file, fh);
    expect(list()).toEqual([]);
  });

  test('a removed file reopened through its descriptor while its hidden name is removed fails with ESTALE', async () => {
    const { on, gate, look, open, close, request, waitForServer: settled } = mount();
    writeFileSync(exported.on('file'), 'file');
    const file = await look(root, 'file');
    const { fh } = await open(file);
    await on.unlink(root, name('file'), request());
    const removal = gate('remove');
    const closed = close(file, fh);
    await expect.poll(() => removal.calls).toBe(1);
    const opening = expect(open(file)).rejects.toThrow('ESTALE');
    await settled();
    removal.open();
    await Promise.all([closed, opening]);
  });

  test.each([
    { directoryIs: 'known', isForgotten: false },
    { directoryIs: 'forgotten', isForgotten: true },
  ])(
    'two names are removed by a user with access by a group, the directory is $directoryIs',
    async ({ isForgotten }) => {
      mkdirSync(exported.on('directory'));
      writeFileSync(exported.on('directory/file'), 'x');
      linkSync(exported.on('directory/file'), exported.on('directory/other'));
      chownSync(exported.on('directory'), 1000, 2000);
      chmodSync(exported.on('directory'), 0o770);
      const { on, look, request, close, list } = mount();
      const directory = await look(root, 'directory', 3000);
      const file = await look(directory, 'file', 3000);
      await look(directory, 'other', 3000);
      const { fh } = await on.open(file, constants.O_RDONLY, request({ uid: 3000 }));
      for (const text of ['file', 'other']) await on.unlink(directory, name(text), request({ uid: 3000 }));
      expect(list('directory')).toEqual([hidden]);
      if (isForgotten) on.forget(directory, 1);
      await close(file, fh);
      expect(list('directory')).toEqual([]);
    },
  );

  test("a user with access by the directory's group replaces a file, without using the file's group", async () => {
    mkdirSync(exported.on('directory'));
    for (const text of ['file', 'new']) writeFileSync(exported.on(`directory/${text}`), text);
    chownSync(exported.on('directory/file'), 1000, 4000);
    chmodSync(exported.on('directory/file'), 0o664);
    chownSync(exported.on('directory'), 1000, 2000);
    chmodSync(exported.on('directory'), 0o770);
    const { nfs, on, look, open, request } = mount();
    const parent = await look(root, 'directory', 3000);
    const file = await look(parent, 'file', 3000);
    await look(parent, 'new', 3000);
    await open(file);
    const credentials: unknown[] = [];
    nfs.link = (handle, to, options) => {
      credentials.push(options?.credential);
      return exported.nfs.link(handle, to, options);
    };
    await on.rename({ parent, name: name('new') }, { parent, name: name('file') }, 0, request({ uid: 3000 }));
    expect(credentials).toEqual([encodeCredential({ uid: 3000, gid: 3000, groups: [2000], machine: 'stowage-test' })]);
  });

  test('a hidden name that could not be removed is removed after a later close, as the user who created it', async () => {
    writeFileSync(exported.on('file'), 'x');
    linkSync(exported.on('file'), exported.on('other'));
    await exported.nfs.setattr(exported.directory, { mode: 0o777 });
    const { nfs, on, look, open, request, close, list } = mount();
    const file = await look(root, 'file');
    await look(root, 'other');
    const before = await open(file);
    await on.unlink(root, name('file'), request({ uid: 3000 }));
    nfs.remove = () => Promise.reject(new NfsError('REMOVE', nfsStatus.IO, false));
    await expect(close(file, before.fh)).rejects.toThrow('EIO');
    const { fh } = await open(file);
    const credentials: unknown[] = [];
    nfs.remove = (directory, text, options) => {
      credentials.push(options?.credential);
      return exported.nfs.remove(directory, text, options);
    };
    await close(file, fh);
    expect(credentials).toEqual([encodeCredential({ uid: 3000, gid: 3000, groups: [], machine: 'stowage-test' })]);
    expect(list()).toEqual(['other']);
  });

  test('a file whose hidden name another client removed can lose another link, and leaves no hidden name', async () => {
    for (const text of ['one', 'two']) mkdirSync(exported.on(text));
    writeFileSync(exported.on('one/file'), 'x');
    linkSync(exported.on('one/file'), exported.on('two/other'));
    const { on, look, open, request, close, read, list } = mount();
    const [one, two] = [await look(root, 'one'), await look(root, 'two')];
    const file = await look(one, 'file');
    await look(two, 'other');
    const { fh } = await open(file);
    await on.unlink(one, name('file'), request());
    const { handle } = await exported.nfs.lookup(exported.directory, 'one');
    await exported.nfs.remove(handle, list('one')[0] ?? expect.fail());
    await on.unlink(two, name('other'), request());
    expect([list('one'), list('two')]).toEqual([[], [hidden]]);
    expect(await read(file, fh)).toBe('x');
    await close(file, fh);
    expect(list('two')).toEqual([]);
  });
});
