import { execFileSync } from 'node:child_process';
import { constants, linkSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { createMemoryNodes, createMemoryProofs } from '#testing/fakes/memory-nodes.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { Operations, Request } from '#wire/fuse/operations.ts';
import type { NfsClient } from '#wire/nfs3/client.ts';
import { NfsError, nfsStatus } from '#wire/nfs3/status.ts';
import { RpcError } from '#wire/rpc/errors.ts';
import { createFileSystem } from './file-system.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);
const place = 7;

describe.skipIf(lacks('ganesha'))('a request resent after a crash', () => {
  const exported = exportedByGanesha();

  /** The state that outlives processes, and a function that starts a process on it. */
  function createSharedState() {
    const nodes = createMemoryNodes(exported.directory);
    const proofs = createMemoryProofs();
    const startProcess = (nfs: NfsClient = exported.nfs): Operations =>
      createFileSystem({
        nfs,
        nodes,
        proofs,
        clock: systemClock(),
        notify: () => undefined,
        options: { identity: asCaller },
      }) as Operations;
    return { nodes, proofs, process: startProcess };
  }

  const request = (requestPlace = place): Request => ({
    uid: 0,
    gid: 0,
    pid: 1,
    slot: requestPlace,
    resent: true,
    signal: new AbortController().signal,
  });

  /** A client whose process dies just before it sends a call of this procedure. */
  const withCallThatDies = (procedure: keyof NfsClient): NfsClient => ({
    ...exported.nfs,
    [procedure]: () => Promise.reject(new RpcError('died', { failure: 'canceled' })),
  });

  const createCases: Readonly<
    Record<string, { procedure: keyof NfsClient; create: (operations: Operations) => Promise<unknown> | unknown }>
  > = {
    create: {
      procedure: 'create',
      create: (operations) =>
        operations.create(
          root,
          name('made'),
          { flags: constants.O_EXCL | constants.O_WRONLY, mode: 0o100640 },
          request(),
        ),
    },
    mkdir: { procedure: 'mkdir', create: (operations) => operations.mkdir(root, name('made'), 0o750, request()) },
    'mknod, a fifo': {
      procedure: 'mknod',
      create: (operations) => operations.mknod(root, name('made'), { mode: 0o010600, rdev: 0 }, request()),
    },
    'mknod, a file': {
      procedure: 'create',
      create: (operations) => operations.mknod(root, name('made'), { mode: 0o100600, rdev: 0 }, request()),
    },
    symlink: {
      procedure: 'symlink',
      create: (operations) => operations.symlink(root, name('made'), name('target'), request()),
    },
  };

  describe.each(Object.entries(createCases))('%s', (_, { procedure, create: make }) => {
    test('finds the object and reports success if the call was executed', async () => {
      const { process, proofs } = createSharedState();
      const first = await make(process());
      const { ino } = statSync(exported.on('made'), { throwIfNoEntry: false }) ?? { ino: 0 };
      const second = await make(process());
      const node = (answer: unknown): unknown =>
        (answer as { entry?: { node: number }; node: number }).entry?.node ?? (answer as { node: number }).node;
      expect(node(second)).toBe(node(first));
      expect(statSync(exported.on('made'), { throwIfNoEntry: false })?.ino ?? 0).toBe(ino);
      // Another request gets EEXIST.
      proofs.clear(place);
      await expect(make(process())).rejects.toThrow('EEXIST');
    });

    test('executes the call if it was not executed', async () => {
      const { process } = createSharedState();
      await expect(make(process(withCallThatDies(procedure)))).rejects.toThrow('EINTR');
      expect(readdirSync(exported.folder)).toEqual([]);
      await make(process());
      expect(readdirSync(exported.folder)).toEqual(['made']);
    });

    test('reports that another client has created it meanwhile', async () => {
      const { process } = createSharedState();
      await expect(make(process(withCallThatDies(procedure)))).rejects.toThrow('EINTR');
      mkdirSync(exported.on('made'));
      await expect(make(process())).rejects.toThrow('EEXIST');
    });
  });

  /** A server that ignores the times that a client sets for new files. */
  const withoutTimes = (): NfsClient => ({
    ...exported.nfs,
    create: (directory, file, how, options) => {
      const { atime: _a, mtime: _m, ...set } = how.mode === 'exclusive' ? {} : how.set;
      return exported.nfs.create(directory, file, how.mode === 'exclusive' ? how : { ...how, set }, options);
    },
  });

  const exclusive = (operations: Operations, file = 'made', at = place) =>
    operations.create(root, name(file), { flags: constants.O_EXCL | constants.O_WRONLY, mode: 0o100640 }, request(at));

  describe('create with O_EXCL on a server that does not keep the marking time', () => {
    test.each([
      ['the server is still unknown', false],
      ['the server is already known', true],
    ])('finds the file if it was created and %s', async (_what, isKnown) => {
      const { process, proofs } = createSharedState();
      const operations = process(withoutTimes());
      if (isKnown)
        await operations.create(root, name('first'), { flags: constants.O_WRONLY, mode: 0o100600 }, request(1));
      const first = await exclusive(operations);
      const second = await exclusive(process(withoutTimes()));
      expect(second.entry.node).toBe(first.entry.node);
      expect(statSync(exported.on('made')).mode & 0o7777).toBe(0o640);
      proofs.clear(place);
      await expect(exclusive(process(withoutTimes()))).rejects.toThrow('EEXIST');
    });

    test('completes a file that was created without all its attributes', async () => {
      const { process } = createSharedState();
      await expect(
        exclusive(process({ ...withoutTimes(), setattr: withCallThatDies('setattr').setattr })),
      ).rejects.toThrow('EINTR');
      const { ino } = statSync(exported.on('made'));
      await exclusive(process(withoutTimes()));
      expect(statSync(exported.on('made')).ino).toBe(ino);
      expect(statSync(exported.on('made')).mode & 0o7777).toBe(0o640);
      expect(Math.abs(statSync(exported.on('made')).mtimeMs - Date.now())).toBeLessThan(60_000);
    });

    test('reports that another client has created it meanwhile', async () => {
      const { process } = createSharedState();
      await expect(exclusive(process(withCallThatDies('create')))).rejects.toThrow('EINTR');
      writeFileSync(exported.on('made'), '');
      await expect(exclusive(process(withoutTimes()))).rejects.toThrow('EEXIST');
    });
  });

  describe('on a server that keeps only modification times', () => {
    /** A server like go-nfs, which ignores the atime. */
    const withoutAtime = (): NfsClient => ({
      ...exported.nfs,
      create: (directory, file, how, options) =>
        exported.nfs.create(
          ...([directory, file] as const),
          how.mode === 'exclusive' ? how : { ...how, set: { ...how.set, atime: undefined } },
          options,
        ),
      mkdir: (directory, file, set, options) =>
        exported.nfs.mkdir(directory, file, { ...set, atime: undefined }, options),
    });

    test('mkdir finds its directory after a file has shown which times are kept', async () => {
      const { process, proofs } = createSharedState();
      const operations = process(withoutAtime());
      await operations.create(root, name('first'), { flags: constants.O_WRONLY, mode: 0o100600 }, request(1));
      const first = await operations.mkdir(root, name('made'), 0o750, request());
      expect((await process(withoutAtime()).mkdir(root, name('made'), 0o750, request())).node).toBe(first.node);
      proofs.clear(place);
      await expect(operations.mkdir(root, name('made'), 0o750, request())).rejects.toThrow('EEXIST');
    });
  });

  test('create with O_EXCL where the time is kept takes one call and finds the file by its time', async () => {
    const { process } = createSharedState();
    const modes: string[] = [];
    const recordingNfs: NfsClient = {
      ...exported.nfs,
      create: (directory, file, how, options) => {
        modes.push(how.mode);
        return exported.nfs.create(directory, file, how, options);
      },
    };
    const operations = process(recordingNfs);
    await exclusive(operations, 'before', 1);
    const first = await exclusive(operations);
    expect(modes).toEqual(['exclusive', 'guarded']);
    expect((await exclusive(process())).entry.node).toBe(first.entry.node);
  });

  describe('on a server that caches another time than is on its disk', () => {
    /**
     * As after a lookup of the name during its creation: nfs-ganesha then returns the intermediate attributes for a
     * minute.
     */
    async function cacheOtherTime(): Promise<void> {
      const { atimeNs } = statSync(exported.on('made'), { bigint: true });
      const { handle } = await exported.nfs.lookup(exported.directory, 'made');
      await exported.nfs.setattr(handle, { atime: { seconds: 1, nanoseconds: 0 } });
      const exactly = `@${atimeNs / 1_000_000_000n}.${String(atimeNs % 1_000_000_000n).padStart(9, '0')}`;
      execFileSync('touch', ['-a', '-d', exactly, exported.on('made')]);
      expect((await exported.nfs.getattr(handle)).atime).toBe(1);
    }

    test.each(Object.entries(createCases).filter(([kind]) => kind !== 'symlink'))(
      '%s still finds its object',
      async (_, { create: make }) => {
        const { process } = createSharedState();
        await make(process());
        const { ino } = statSync(exported.on('made'));
        await cacheOtherTime();
        await make(process());
        expect(statSync(exported.on('made')).ino).toBe(ino);
      },
    );

    test('create finds its file after the reply was lost and the call was resent on another connection', async () => {
      const { process } = createSharedState();
      const resendingNfs: NfsClient = {
        ...exported.nfs,
        create: async (...args) => {
          await exported.nfs.create(...args);
          await cacheOtherTime();
          throw new NfsError('CREATE', nfsStatus.EXIST, true);
        },
      };
      const createOptions = { flags: constants.O_WRONLY, mode: 0o100640 };
      const { entry } = await process(resendingNfs).create(root, name('made'), createOptions, request());
      expect(entry.attr?.ino).toBe(statSync(exported.on('made')).ino);
    });
  });

  test('create without O_EXCL of a file created by another client makes the kernel look it up', async () => {
    const { process } = createSharedState();
    const create = (operations: Operations) =>
      operations.create(
        root,
        name('made'),
        { flags: constants.O_WRONLY | constants.O_TRUNC, mode: 0o100640 },
        request(),
      );
    await expect(create(process(withCallThatDies('create')))).rejects.toThrow('EINTR');
    writeFileSync(exported.on('made'), 'of somebody else');
    const operations = process();
    await expect(create(operations)).rejects.toThrow('ESTALE');
    expect((await operations.lookup(root, name('made'), request())).attr?.ino).toBe(statSync(exported.on('made')).ino);
    expect(readFileSync(exported.on('made'), 'utf8')).toBe('of somebody else');
  });

  const removeCases = {
    unlink: { put: (at: string) => writeFileSync(at, 'x'), procedure: 'remove' },
    rmdir: { put: (at: string) => mkdirSync(at), procedure: 'rmdir' },
  } as const;

  describe.each(Object.entries(removeCases))('%s', (kind, { put, procedure }) => {
    const remove = (operations: Operations) => operations[kind as 'unlink' | 'rmdir'](root, name('gone'), request());

    test('succeeds if the call was executed, even if another client has recreated the name', async () => {
      put(exported.on('gone'));
      const { process, proofs } = createSharedState();
      await remove(process());
      await remove(process());
      put(exported.on('gone'));
      await remove(process());
      expect(readdirSync(exported.folder)).toEqual(['gone']);
      proofs.clear(place);
      await remove(process());
      proofs.clear(place);
      await expect(remove(process())).rejects.toThrow('ENOENT');
    });

    test('executes the call if it was not executed', async () => {
      put(exported.on('gone'));
      const { process } = createSharedState();
      await expect(remove(process(withCallThatDies(procedure)))).rejects.toThrow('EINTR');
      await remove(process());
      expect(readdirSync(exported.folder)).toEqual([]);
    });
  });

  describe('unlink of an open file', () => {
    async function openFile(operations: Operations): Promise<number> {
      const { node } = await operations.lookup(root, name('file'), request(1));
      await operations.open(node, constants.O_RDONLY, request(1));
      return node;
    }
    const unlink = (operations: Operations) => operations.unlink(root, name('file'), request());

    test.each(['was executed', 'was not executed'])('completes after the silly rename %s', async (what) => {
      writeFileSync(exported.on('file'), 'x');
      const { process, nodes } = createSharedState();
      const node = await openFile(process());
      const first = unlink(process(what === 'was executed' ? exported.nfs : withCallThatDies('rename')));
      if (what === 'was executed') await first;
      else await expect(first).rejects.toThrow('EINTR');
      await unlink(process());
      const [hidden] = readdirSync(exported.folder);
      expect(readdirSync(exported.folder)).toEqual([expect.stringMatching(/^\.nfs/)]);
      expect(nodes.hiddenName(node)?.name).toBe(hidden);
      await process().release(node, { fh: 0, unlock: undefined }, request(2));
      expect(readdirSync(exported.folder)).toEqual([]);
    });

    test('only removes another link if a hidden name exists', async () => {
      writeFileSync(exported.on('file'), 'x');
      linkSync(exported.on('file'), exported.on('other'));
      const { process } = createSharedState();
      const node = await openFile(process());
      await process().unlink(root, name('other'), request(2));
      await unlink(process());
      await unlink(process());
      expect(readdirSync(exported.folder)).toEqual([expect.stringMatching(/^\.nfs/)]);
      await process().release(node, { fh: 0, unlock: undefined }, request(3));
      expect(readdirSync(exported.folder)).toEqual([]);
    });
  });

  describe('rename', () => {
    const rename = (operations: Operations) =>
      operations.rename({ parent: root, name: name('from') }, { parent: root, name: name('to') }, 0, request());

    test('succeeds if the call was executed, even if the old name now refers to another object', async () => {
      writeFileSync(exported.on('from'), 'moved');
      writeFileSync(exported.on('to'), 'replaced');
      const { process, proofs } = createSharedState();
      await rename(process());
      await rename(process());
      expect(readdirSync(exported.folder)).toEqual(['to']);
      writeFileSync(exported.on('from'), 'another');
      await rename(process());
      expect(readFileSync(exported.on('to'), 'utf8')).toBe('moved');
      expect(readFileSync(exported.on('from'), 'utf8')).toBe('another');
      proofs.clear(place);
      await rename(process());
      expect(readFileSync(exported.on('to'), 'utf8')).toBe('another');
    });

    test('executes the call if it was not executed', async () => {
      writeFileSync(exported.on('from'), 'moved');
      const { process } = createSharedState();
      await expect(rename(process(withCallThatDies('rename')))).rejects.toThrow('EINTR');
      await rename(process());
      expect(readFileSync(exported.on('to'), 'utf8')).toBe('moved');
      expect(readdirSync(exported.folder)).toEqual(['to']);
    });

    test('leaves the old name alone if another client continued after the rename', async () => {
      writeFileSync(exported.on('from'), 'moved');
      const { process } = createSharedState();
      await rename(process());
      // Through the server, because it has its own cache.
      const { directory } = exported;
      await exported.nfs.rename({ directory, name: 'to' }, { directory, name: 'elsewhere' });
      await rename(process());
      expect(readdirSync(exported.folder)).toEqual(['elsewhere']);
      await exported.nfs.create(directory, 'from', { mode: 'guarded', set: { mode: 0o600 } });
      await rename(process());
      expect(readdirSync(exported.folder).toSorted()).toEqual(['elsewhere', 'from']);
    });
  });

  describe('rename over an open file', () => {
    const rename = async (operations: Operations) =>
      await operations.rename({ parent: root, name: name('from') }, { parent: root, name: name('to') }, 0, request());
    const changes = ['link', 'rename', 'remove'] as const;

    /** The process is killed at its nth change: before the server has it, or after the server executed it. */
    function killAtChange(nth: number, when: string): { readonly nfs: NfsClient; readonly killed: Promise<void> } {
      const { promise: killed, resolve } = Promise.withResolvers<void>();
      let count = 0;
      const run = async (change: (typeof changes)[number], args: readonly unknown[]): Promise<unknown> => {
        const isAlive = ++count < nth;
        const call = exported.nfs[change] as (...all: readonly unknown[]) => Promise<unknown>;
        if (isAlive) return await call(...args);
        if (count === nth && when === 'after') await call(...args);
        resolve();
        return await new Promise(() => undefined);
      };
      const dyingCalls = changes.map((change) => [change, (...args: unknown[]) => run(change, args)]);
      return { nfs: { ...exported.nfs, ...Object.fromEntries(dyingCalls) }, killed };
    }

    async function opened(operations: Operations): Promise<number> {
      for (const each of ['from', 'to']) writeFileSync(exported.on(each), each);
      const { node } = await operations.lookup(root, name('to'), request(1));
      await operations.open(node, constants.O_RDONLY, request(1));
      return node;
    }

    const kills = [1, 2].flatMap((nth) => ['before', 'after'].map((when) => ({ nth, when })));

    test.each(kills)(
      'leaves one of the two files if killed $when change $nth and not resent',
      async ({ nth, when }) => {
        const { process } = createSharedState();
        const node = await opened(process());
        const { nfs, killed } = killAtChange(nth, when);
        void rename(process(nfs));
        await killed;
        const isMoved = nth === 2 && when === 'after';
        expect(readFileSync(exported.on('to'), 'utf8')).toBe(isMoved ? 'from' : 'to');
        await process().release(node, { fh: 0, unlock: undefined }, request(2));
        expect(readdirSync(exported.folder).toSorted()).toEqual(isMoved ? ['to'] : ['from', 'to']);
      },
    );

    test.each(kills)('completes on resend if killed $when change $nth', async ({ nth, when }) => {
      const { process, nodes } = createSharedState();
      const node = await opened(process());
      const { nfs, killed } = killAtChange(nth, when);
      void rename(process(nfs));
      await killed;
      await rename(process());
      expect(readFileSync(exported.on('to'), 'utf8')).toBe('from');
      expect(readdirSync(exported.folder).toSorted()).toEqual([nodes.hiddenName(node)?.name, 'to']);
      await process().release(node, { fh: 0, unlock: undefined }, request(2));
      expect(readdirSync(exported.folder)).toEqual(['to']);
    });
  });

  describe('link', () => {
    async function link(operations: Operations, node: number) {
      return await operations.link(node, root, name('new'), request());
    }
    const lookup = async (operations: Operations): Promise<number> =>
      (await operations.lookup(root, name('file'), request(1))).node;

    test('succeeds if the call was executed', async () => {
      writeFileSync(exported.on('file'), 'x');
      const { process, proofs } = createSharedState();
      const node = await lookup(process());
      await link(process(), node);
      expect((await link(process(), node)).attr?.nlink).toBe(2);
      proofs.clear(place);
      await expect(link(process(), node)).rejects.toThrow('EEXIST');
    });

    test('executes a call that was not executed, unless another client has taken the name', async () => {
      writeFileSync(exported.on('file'), 'x');
      const { process, proofs } = createSharedState();
      const node = await lookup(process());
      await expect(link(process(withCallThatDies('link')), node)).rejects.toThrow('EINTR');
      await link(process(), node);
      expect(statSync(exported.on('new')).nlink).toBe(2);
      await exported.nfs.remove(exported.directory, 'new');
      proofs.clear(place);
      await expect(link(process(withCallThatDies('link')), node)).rejects.toThrow('EINTR');
      await exported.nfs.create(exported.directory, 'new', { mode: 'guarded', set: { mode: 0o600 } });
      await expect(link(process(), node)).rejects.toThrow('EEXIST');
    });
  });
});
