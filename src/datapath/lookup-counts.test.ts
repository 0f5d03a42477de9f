import { closeSync, constants, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { asCaller } from '#testing/nfs-mount.ts';
import type { DirentWriter, Entry, Operations, Request } from '#wire/fuse/operations.ts';
import { createFileSystem } from './file-system.ts';
import { createJournal, openJournal } from './journal/memory.ts';
import { createNodeTable } from './journal/nodes.ts';
import { createRequests } from './journal/requests.ts';

const root = 1;
const name = (text: string): Buffer => Buffer.from(text);

describe.skipIf(lacks('ganesha', 'linux'))('a request that was executed but not answered, and is resent', () => {
  const exported = exportedByGanesha();

  /** The real journal, and successive processes that use it. */
  function createSharedJournal() {
    const fd = createJournal(4);
    const memories: Disposable[] = [];
    onTestFinished(() => {
      for (const one of memories) one[Symbol.dispose]();
      closeSync(fd);
    });
    let unique = 0;
    return () => {
      const memory = openJournal(fd);
      memories.push(memory);
      const [requests, table] = [createRequests(memory), createNodeTable(memory)];
      requests.restoreUnfinished();
      const armed = requests.arm(0) ?? expect.fail();
      const nodes = table.openMount(0, exported.directory);
      const operations = createFileSystem({
        nfs: exported.nfs,
        nodes,
        proofs: requests,
        clock: systemClock(),
        notify: () => undefined,
        options: { identity: asCaller },
      }) as Operations;
      const readRequest = (): Request => {
        armed.view.setUint32(0, 80, true);
        armed.view.setUint32(8, ++unique, true);
        const { place } = requests.take(0, armed, 80) ?? expect.fail();
        return { uid: 0, gid: 0, pid: 1, slot: place, resent: false, signal: new AbortController().signal };
      };
      /** A request that is answered. */
      const answered = async <R>(execute: (request: Request) => R | Promise<R>): Promise<R> => {
        const request = readRequest();
        const answer = await execute(request);
        requests.free(request.slot);
        return answer;
      };
      return { on: operations, nodes, table, requests, take: readRequest, done: answered };
    };
  }

  const release = (on: Operations, node: number, request: Request) =>
    on.release(node, { fh: 0, unlock: undefined }, request);

  test('does not count a close twice: a file open elsewhere stays', async () => {
    writeFileSync(exported.on('file'), 'still read');
    const startProcess = createSharedJournal();
    const first = startProcess();
    const { node } = await first.done((request) => first.on.lookup(root, name('file'), request));
    for (let i = 0; i < 2; i++) await first.done((request) => first.on.open(node, constants.O_RDONLY, request));
    const releaseRequest = first.take();
    await release(first.on, node, releaseRequest);

    const second = startProcess();
    await release(second.on, node, releaseRequest);
    second.requests.free(releaseRequest.slot);
    expect(second.nodes.get(node)?.opens).toBe(1);
    await second.done((request) => second.on.unlink(root, name('file'), request));
    const [hidden = ''] = readdirSync(exported.folder);
    expect(readFileSync(exported.on(hidden), 'utf8')).toBe('still read');
    await second.done((request) => release(second.on, node, request));
    expect(readdirSync(exported.folder)).toEqual([]);
  });

  test('does not count an open or a create twice: the last close deletes a removed file', async () => {
    const startProcess = createSharedJournal();
    const first = startProcess();
    const [createRequest, openRequest] = [first.take(), first.take()];
    const createOptions = { flags: constants.O_WRONLY | constants.O_EXCL, mode: 0o100600 };
    const { entry } = await first.on.create(root, name('file'), createOptions, createRequest);
    await first.on.open(entry.node, constants.O_RDONLY, openRequest);

    const second = startProcess();
    expect((await second.on.create(root, name('file'), createOptions, createRequest)).entry.node).toBe(entry.node);
    await second.on.open(entry.node, constants.O_RDONLY, openRequest);
    for (const { slot } of [createRequest, openRequest]) second.requests.free(slot);
    await second.done((request) => second.on.unlink(root, name('file'), request));
    for (let i = 0; i < 2; i++) await second.done((request) => release(second.on, entry.node, request));
    expect(readdirSync(exported.folder)).toEqual([]);
    second.on.forget(entry.node, 1);
    expect(second.table.size).toBe(0);
  });

  test('does not count a lookup or a listing twice: no node is left after the kernel forgot all', async () => {
    const names = ['a', 'b', 'c'];
    for (const one of names) writeFileSync(exported.on(one), one);
    const startProcess = createSharedJournal();
    const first = startProcess();
    const [lookupRequest, listRequest] = [first.take(), first.take()];
    const list = async (on: Operations): Promise<readonly Entry[]> => {
      const entries: Entry[] = [];
      const writer: DirentWriter = {
        add: ({ entry }) => {
          if (entry !== undefined) entries.push(entry);
          return true;
        },
      };
      await on.readdir(root, { fh: 1, offset: 0n, plus: true }, writer, listRequest);
      return entries;
    };
    const lookup = (on: Operations) => on.lookup(root, name('a'), lookupRequest);
    await lookup(first.on);
    await list(first.on);

    const second = startProcess();
    const entries = [await lookup(second.on), ...(await list(second.on))];
    expect(entries).toHaveLength(4);
    for (const { node } of entries) second.on.forget(node, 1);
    expect(second.table.size).toBe(0);
  });
});
